//! Links `names.c` into a static binary of glibc: what resolves names there must not load libraries of the node. A dynamic binary
//! uses what the node has configured, and musl has no modules.

#[path = "../../backends/compiler.rs"]
mod compiler;

use std::path::PathBuf;
use std::process::Command;
use std::{env, fs};

/// Flags by which the object is compiled; it goes into a position-independent program.
const FLAGS: [&str; 7] = [
    "-c",
    "-fPIE",
    "-Os",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-fstack-protector-strong",
];

fn main() {
    println!("cargo::rerun-if-changed=names.c");
    println!("cargo::rerun-if-changed=../../backends/compiler.rs");
    let lists = |variable: &str, word: &str| {
        env::var(variable).is_ok_and(|words| words.split(',').any(|of| of == word))
    };
    if !lists("CARGO_CFG_TARGET_ENV", "gnu") || !lists("CARGO_CFG_TARGET_FEATURE", "crt-static") {
        return;
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let object = out.join("names.o");
    let compiler = compiler::compiler();
    let status = Command::new(&compiler)
        .args(FLAGS)
        .arg("-o")
        .arg(&object)
        .arg("names.c")
        .status();
    assert!(
        status.is_ok_and(|status| status.success()) && fs::exists(&object).is_ok_and(|is| is),
        "{} does not compile names.c: install gcc and libc6-dev",
        compiler.display()
    );
    println!("cargo::rustc-link-arg-bin=switchyard={}", object.display());
}
