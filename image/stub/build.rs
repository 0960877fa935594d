//! Links the stub as a position-independent program without a C runtime, by its own linker script;
//! and the loader for tests.

fn main() {
    println!("cargo::rerun-if-changed=link.ld");
    println!("cargo::rerun-if-changed=test-loader/link.ld");
    println!("cargo::rerun-if-changed=build.rs");
    let dir = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    for arg in [
        "-nostartfiles",
        "-nodefaultlibs",
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
    for (bin, arg, script) in
        [("stub", "-static-pie", "link.ld"), ("test-loader", "-no-pie", "test-loader/link.ld")]
    {
        println!("cargo::rustc-link-arg-bin={bin}={arg}");
        println!("cargo::rustc-link-arg-bin={bin}=-Wl,-T,{dir}/{script}");
    }
}
