//! Sets the name that the loader looks for: `libkvmem.so.` and the number of the interface.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // While the version is 0.x, every minor version has its own interface.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libkvmem.so.0");
}
