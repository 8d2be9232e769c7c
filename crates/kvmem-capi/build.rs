//! Gives the shared library the name that the loader looks for: `libkvmem.so.` and the number of
//! the interface.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // While the version is 0.x every minor version is an interface of its own.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libkvmem.so.0");
}
