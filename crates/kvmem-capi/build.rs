//! Sets the name that the loader looks for: `libkvmem.so.` and the number of the interface.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // It rises with a release that breaks compiled programs; xtask/src/layout.rs has it too.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libkvmem.so.0");
}
