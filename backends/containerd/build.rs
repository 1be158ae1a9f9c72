//! Compiles the infra process, which is put into the binary.

use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=infra/pause.c");
    println!("cargo::rerun-if-env-changed=CC");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("pause");
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let status = Command::new(&compiler)
        .args(["-static", "-Os", "-s", "-Wall", "-Werror", "-o"])
        .arg(&out)
        .arg("infra/pause.c")
        .status()
        .unwrap_or_else(|fault| {
            panic!("cannot run {}: {fault}: install gcc and libc6-dev", compiler.display())
        });
    assert!(status.success(), "infra/pause.c does not compile: install gcc and libc6-dev (for libc.a)");
}
