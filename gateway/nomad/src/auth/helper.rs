//! Docker's credential helpers: programs that read the name of a registry from standard input and print its
//! credentials.

use std::process::Stdio;
use std::time::Duration;

use serde::Deserialize;
use switchyard_core::image::Credentials;
use switchyard_core::{Error, Result};
use switchyard_linux::{GroupLeader, beginning};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;

/// Limit for a helper to answer.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The longest output of a helper, in bytes.
const ANSWER_LIMIT: u64 = 64 << 10;

/// The user name with which helpers mark a token.
const TOKEN_USER: &str = "<token>";

/// The answer of a helper.
#[derive(Deserialize)]
struct HelperOutput {
    #[serde(rename = "Username", default)]
    username: String,
    #[serde(rename = "Secret", default)]
    secret: String,
}

/// The end of a helper, and its output.
struct HelperExit {
    success: bool,
    stdout: Vec<u8>,
}

/// The credentials that the program `docker-credential-NAME` has for a registry; `None` if it has none.
/// Cancel-safe: the program is killed, with those that it runs.
///
/// # Errors
/// `InvalidArgument` for a name that is not a program name; `Unavailable` if it cannot be run, fails or prints too
/// much; `DeadlineExceeded`.
pub(super) async fn get(name: &str, registry: &str) -> Result<Option<Credentials>> {
    if !name
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
    {
        return Err(Error::invalid(
            "credential helper",
            format!("{name:?} is no name of a program"),
        ));
    }
    let program = format!("docker-credential-{name}");
    let mut command = Command::new(&program);
    command.arg("get");
    let run = run(&program, command, registry);
    let HelperExit { success, stdout } =
        tokio::time::timeout(TIMEOUT, run).await.map_err(|_| {
            Error::deadline(format!(
                "{program} has not answered within {TIMEOUT:?} and was killed"
            ))
        })??;
    if success {
        return answer(&stdout).map_err(|why| Error::unavailable(format!("{program}: {why}")));
    }
    let text = String::from_utf8_lossy(&stdout);
    if text.contains("credentials not found") {
        return Ok(None);
    }
    // Helpers report errors on standard output. The content is unknown and may be long, so only the first
    // line is used.
    let why = beginning(text.lines().next().unwrap_or_default(), 200);
    Err(Error::unavailable(format!(
        "{program} failed for {registry}: {why}"
    )))
}

/// Runs a helper, in a process group of its own, until it has exited.
async fn run(program: &str, mut command: Command, registry: &str) -> Result<HelperExit> {
    let failed = |action: &str, source: std::io::Error| {
        Error::unavailable(format!(
            "{action} {program}: is it on the PATH of the daemon?"
        ))
        .with_source(source)
    };
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut helper = GroupLeader::start(&mut command).map_err(|error| failed("run", error))?;
    let stdin = helper.take_stdin();
    let stdout = helper.take_stdout();
    let send = async {
        if let Some(mut stdin) = stdin {
            // A program that answers without reading its input is accepted.
            drop(stdin.write_all(registry.as_bytes()).await);
        }
    };
    let receive = async {
        let mut printed = Vec::new();
        if let Some(stdout) = stdout {
            stdout
                .take(ANSWER_LIMIT + 1)
                .read_to_end(&mut printed)
                .await
                .map_err(|error| failed("read", error))?;
        }
        Ok::<_, Error>(printed)
    };
    let ((), printed) = tokio::join!(send, receive);
    let stdout = printed?;
    if u64::try_from(stdout.len()).is_ok_and(|length| length > ANSWER_LIMIT) {
        return Err(Error::unavailable(format!(
            "{program} printed more than {ANSWER_LIMIT} bytes for {registry} and was killed"
        )));
    }
    let status = helper
        .wait()
        .await
        .map_err(|error| failed("wait for", error))?;
    Ok(HelperExit {
        success: status.success(),
        stdout,
    })
}

/// Parses an answer; an empty one means no credentials.
fn answer(output: &[u8]) -> Result<Option<Credentials>, &'static str> {
    let answer: HelperOutput =
        serde_json::from_slice(output).map_err(|_| "its answer is not the JSON of a helper")?;
    let HelperOutput { username, secret } = answer;
    Ok(match username.as_str() {
        "" => None,
        TOKEN_USER => Some(Credentials::IdentityToken(secret)),
        _ => Some(Credentials::Basic {
            username,
            password: secret,
        }),
    })
}

#[cfg(test)]
mod tests {
    use switchyard_linux::process::ProcessId;

    use super::*;

    /// The pause between two looks at a process.
    const POLL: Duration = Duration::from_millis(5);

    #[test]
    fn helper_answer_is_a_user_a_token_or_nothing() {
        let basic = Credentials::Basic {
            username: "u".into(),
            password: "p".into(),
        };
        assert_eq!(
            answer(br#"{"ServerURL":"r","Username":"u","Secret":"p"}"#),
            Ok(Some(basic))
        );
        let token = Credentials::IdentityToken("t".into());
        assert_eq!(
            answer(br#"{"Username":"<token>","Secret":"t"}"#),
            Ok(Some(token))
        );
        assert_eq!(answer(b"{}"), Ok(None));
        assert!(answer(b"hunter2").is_err());
    }

    #[tokio::test]
    async fn helper_name_with_a_path_is_rejected() {
        for name in ["../../bin/sh", "a b", "x/y"] {
            let refused = get(name, "r").await.expect_err("it is no name");
            assert_eq!(refused.kind(), switchyard_core::ErrorKind::InvalidArgument);
        }
    }

    #[tokio::test]
    async fn missing_helper_is_named() {
        let missing = get("no-such-helper", "r").await.expect_err("nobody has it");
        assert!(
            missing
                .report()
                .contains("docker-credential-no-such-helper"),
            "{missing:?}"
        );
    }

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    #[tokio::test]
    async fn helper_is_killed_with_the_programs_that_it_runs() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        let script = format!("sleep 1000 & echo $! > {}; wait", file.display());
        let child = async {
            loop {
                let text = std::fs::read_to_string(&file).unwrap_or_default();
                if let Some(pid) = text.strip_suffix('\n') {
                    break ProcessId::of(pid.parse().unwrap()).unwrap();
                }
                tokio::time::sleep(POLL).await;
            }
        };
        // The rest of the call is dropped, as at the end of the time.
        let child = tokio::select! {
            child = child => child,
            _ = run("helper", shell(&script), "r") => panic!("it waits for its child"),
        };
        let ended = async {
            while child.is_alive() {
                tokio::time::sleep(POLL).await;
            }
        };
        tokio::time::timeout(TIMEOUT, ended)
            .await
            .expect("it is killed with the helper");
    }

    #[tokio::test]
    async fn output_of_a_helper_is_limited_and_the_limit_named() {
        let whole = format!("head -c {ANSWER_LIMIT} /dev/zero");
        let whole = run("helper", shell(&whole), "r").await.unwrap();
        assert!(whole.success);
        assert_eq!(u64::try_from(whole.stdout.len()).unwrap(), ANSWER_LIMIT);
        let endless = run("helper", shell("cat /dev/zero"), "r").await;
        let error = endless.err().expect("it prints too much");
        assert!(
            error.report().contains("printed more than 65536 bytes"),
            "{error:?}"
        );
    }
}
