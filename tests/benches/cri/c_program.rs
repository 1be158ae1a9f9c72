//! Small programs in C that the benchmark compiles for itself.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use switchyard_tests::prereq;

use crate::failure::Failure;

/// Compiles a static program of this name; `dir` takes it and its source.
pub(crate) fn compile(dir: &Path, name: &str, source: &str) -> Result<PathBuf, Failure> {
    let compiler = prereq::require("cc", "gcc libc6-dev");
    let file = dir.join(name).with_extension("c");
    let program = dir.join(name);
    fs::write(&file, source)?;
    let status = Command::new(compiler)
        .args(["-Os", "-static", "-s", "-o"])
        .arg(&program)
        .arg(&file)
        .status()?;
    if status.success() {
        return Ok(program);
    }
    Err(format!("cannot compile the program {name}: cc ended with {status}").into())
}
