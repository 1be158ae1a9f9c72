//! The `switchyard` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    switchyard::cli::main()
}
