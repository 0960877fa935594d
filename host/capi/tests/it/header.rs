//! The checked-in header is the one that the crate generates. `FERROLITE_WRITE_HEADER=1 cargo test -p
//! ferrolite --test it header` writes it.

use std::path::Path;

#[test]
fn the_header_is_up_to_date() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut builder = cbindgen::Builder::new()
        .with_config(cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap());
    for source in ["status.rs", "node.rs", "region.rs", "rpc.rs"] {
        builder = builder.with_src(root.join("src").join(source));
    }
    let mut made = Vec::new();
    builder.generate().unwrap().write(&mut made);
    let path = root.join("include/ferrolite.h");
    if std::env::var_os("FERROLITE_WRITE_HEADER").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let checked_in = std::fs::read(&path).unwrap_or_default();
    assert!(made == checked_in, "include/ferrolite.h is not what the crate makes: see the top of this file");
}
