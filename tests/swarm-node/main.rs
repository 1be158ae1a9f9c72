//! A node of a swarm as a program of its own, so that tests can kill it.
//!
//! ```text
//! swarm-node join DIRECTORY MANAGER TOKEN_FILE    exit status 0 once the node is a member
//! swarm-node leave DIRECTORY
//! ```

use std::path::PathBuf;
use std::process::ExitCode;

use switchyard_proto::docker::swarmkit::v1::node_spec::Availability;
use switchyard_swarm::{Error, JoinRequest, Store, join};

#[expect(clippy::print_stderr, reason = "a test shows it when something fails")]
fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["join", dir, manager, token_file] => join_by(dir, manager, token_file),
        ["leave", dir] => Store::new(PathBuf::from(dir)).wipe(),
        _ => {
            eprintln!("swarm-node join DIRECTORY MANAGER TOKEN_FILE | leave DIRECTORY");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}", error.report());
            ExitCode::FAILURE
        }
    }
}

fn join_by(dir: &str, manager: &str, token_file: &str) -> Result<(), Error> {
    let token = std::fs::read_to_string(token_file)
        .expect("the test has written it")
        .parse()?;
    let request = JoinRequest {
        managers: vec![manager.to_owned()],
        token,
        availability: Availability::Drain,
    };
    let store = Store::new(PathBuf::from(dir));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime
        .expect("a runtime can be made")
        .block_on(join(&store, &request))
        .map(drop)
}
