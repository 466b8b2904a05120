//! Links programs with the C++ library if they ask for its operators: linkers export what a program defines of a library that it is linked
//! with, and the plugin then finds `operator new` there (`src/operators.rs`). Where the library is not found, the plugin has its own.

use std::path::PathBuf;
use std::process::Command;

const LIBRARY: &str = "libstdc++.so.6";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(exported_operators)");
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let is_asked_for = !variable("CARGO_FEATURE_ALLOCATOR").is_empty();
    let is_served = variable("CARGO_CFG_TARGET_OS") == "linux"
        && variable("CARGO_CFG_TARGET_ENV") == "gnu"
        && variable("CARGO_CFG_TARGET_POINTER_WIDTH") == "64"
        && variable("HOST") == variable("TARGET");
    let Some(library) = (is_asked_for && is_served).then(library).flatten() else {
        return;
    };
    if let Some(folder) = library.parent() {
        println!("cargo::rustc-cfg=exported_operators");
        println!("cargo::rustc-link-search=native={}", folder.display());
        println!("cargo::rustc-link-lib=dylib:+verbatim={LIBRARY}");
    }
}

/// Where the linker's C compiler finds the library.
fn library() -> Option<PathBuf> {
    let compiler = std::env::var("RUSTC_LINKER").unwrap_or_else(|_| "cc".to_owned());
    let asked = Command::new(compiler)
        .arg(format!("-print-file-name={LIBRARY}"))
        .output()
        .ok()?;
    let answer = String::from_utf8(asked.stdout).ok()?;
    let path = PathBuf::from(answer.trim());
    // The compiler repeats the name of what it does not find.
    (path.is_absolute() && path.exists()).then_some(path)
}
