//! Links the program without a C library.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_FEATURE_BARE").is_some() {
        for argument in ["-nostartfiles", "-nostdlib", "-static"] {
            println!("cargo::rustc-link-arg-bins={argument}");
        }
    }
}
