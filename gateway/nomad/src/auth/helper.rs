//! Docker's credential helpers: programs that read the name of a registry from standard input and print its
//! credentials.

use std::process::Stdio;
use std::time::Duration;

use serde::Deserialize;
use switchyard_core::image::Credentials;
use switchyard_core::{Error, Result};
use switchyard_linux::beginning;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;

/// Limit for a helper to answer.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The longest output of a helper that is read, in bytes.
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

/// The credentials that the program `docker-credential-NAME` has for a registry; `None` if it has none.
/// Cancel-safe: the program is killed.
///
/// # Errors
/// `InvalidArgument` for a name that is not a program name; `Unavailable` if it cannot be run or fails;
/// `DeadlineExceeded`.
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
    let run = run(&program, registry);
    let (well, output) = tokio::time::timeout(TIMEOUT, run).await.map_err(|_| {
        Error::deadline(format!(
            "{program} has not answered within {TIMEOUT:?} and was killed"
        ))
    })??;
    if well {
        return answer(&output).map_err(|why| Error::unavailable(format!("{program}: {why}")));
    }
    let text = String::from_utf8_lossy(&output);
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

/// Runs the program; returns whether it succeeded, and its output.
async fn run(program: &str, registry: &str) -> Result<(bool, Vec<u8>)> {
    let failed = |doing: &str, fault: std::io::Error| {
        Error::unavailable(format!(
            "{doing} {program}: is it on the PATH of the daemon?"
        ))
        .with_source(fault)
    };
    let mut child = Command::new(program)
        .arg("get")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(|fault| failed("run", fault))?;
    let stdin = child.stdin.take();
    let stdout = child.stdout.take();
    let ask = async {
        if let Some(mut stdin) = stdin {
            // A program that answers without reading its input is accepted.
            drop(stdin.write_all(registry.as_bytes()).await);
        }
    };
    let listen = async {
        let mut printed = Vec::new();
        if let Some(stdout) = stdout {
            stdout
                .take(ANSWER_LIMIT)
                .read_to_end(&mut printed)
                .await
                .map_err(|fault| failed("read", fault))?;
        }
        Ok::<_, Error>(printed)
    };
    let ((), printed) = tokio::join!(ask, listen);
    let status = child
        .wait()
        .await
        .map_err(|fault| failed("wait for", fault))?;
    Ok((status.success(), printed?))
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
    use super::*;

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
}
