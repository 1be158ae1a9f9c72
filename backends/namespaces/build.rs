//! Compiles the helper, which is put into the binary.

use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=helper");
    println!("cargo::rerun-if-env-changed=CC");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("helper");
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let status = Command::new(&compiler)
        .args(["-static", "-Os", "-s", "-Wall", "-Werror", "-o"])
        .arg(&out)
        .args(["helper/helper.c", "helper/projects.c"])
        .status()
        .unwrap_or_else(|fault| {
            panic!("cannot run {}: {fault}: install gcc and libc6-dev", compiler.display())
        });
    assert!(status.success(), "the helper does not compile: install gcc and libc6-dev (for libc.a)");
}
