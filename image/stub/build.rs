//! Links the stub as a position-independent program without a C runtime, by its own linker script.

fn main() {
    println!("cargo::rerun-if-changed=link.ld");
    println!("cargo::rerun-if-changed=build.rs");
    let dir = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    for arg in [
        "-nostartfiles",
        "-nodefaultlibs",
        "-static-pie",
        "-Wl,--no-dynamic-linker",
        "-Wl,--build-id=none",
        "-Wl,--no-undefined",
        "-Wl,-z,noexecstack",
        "-Wl,-z,norelro",
        "-Wl,-z,max-page-size=4096",
        "-Wl,--gc-sections",
    ] {
        println!("cargo::rustc-link-arg-bins={arg}");
    }
    println!("cargo::rustc-link-arg-bins=-Wl,-T,{dir}/link.ld");
}
