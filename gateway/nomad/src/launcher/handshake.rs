//! The handshake of an agent and its plugin, before gRPC.

use std::ffi::OsStr;
use std::path::Path;

/// The variable, and its value, with which Nomad marks a process started as a plugin.
pub const COOKIE: (&str, &str) = (
    "NOMAD_PLUGIN_MAGIC_COOKIE",
    "e4327c2e01eabfd75a8a67adb114fb34a757d57eee7728d857a8cec6e91a7255",
);

/// The version of go-plugin's own protocol.
const CORE_VERSION: u32 = 1;

/// The version of Nomad's protocol over it.
const NOMAD_VERSION: u32 = 2;

/// The process was not started by an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HandshakeError;

/// Checks by the value of the cookie whether an agent started this process.
///
/// # Errors
/// [`HandshakeError`], which describes to a person what to do instead.
pub fn check_cookie(value: Option<&OsStr>) -> Result<(), HandshakeError> {
    if value == Some(OsStr::new(COOKIE.1)) {
        Ok(())
    } else {
        Err(HandshakeError)
    }
}

/// Makes the line with which an agent learns its plugin's address. `multiplex`: the agent asked whether one
/// connection can carry several.
pub(super) fn line(socket: &Path, multiplex: bool) -> String {
    // The sixth field would be a certificate; the seventh answers that multiplexing is not supported.
    let tail = if multiplex { "|false" } else { "" };
    format!(
        "{CORE_VERSION}|{NOMAD_VERSION}|unix|{}|grpc|{tail}\n",
        socket.display()
    )
}

impl std::fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(
            "this is a plugin that a Nomad agent starts by itself, and of no use by hand: put it into the agent's plugin_dir \
             (`switchyard nomad-plugin install DIR` does) and name it in a `plugin` block of the agent's configuration",
        )
    }
}

impl std::error::Error for HandshakeError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_magic_cookie_is_accepted() {
        assert_eq!(check_cookie(Some(OsStr::new(COOKIE.1))), Ok(()));
        assert_eq!(check_cookie(Some(OsStr::new("e432"))), Err(HandshakeError));
        assert_eq!(check_cookie(None), Err(HandshakeError));
    }

    #[test]
    fn handshake_line_has_the_required_fields() {
        let socket = Path::new("/run/x/driver-1.sock");
        assert_eq!(line(socket, false), "1|2|unix|/run/x/driver-1.sock|grpc|\n");
        assert_eq!(
            line(socket, true),
            "1|2|unix|/run/x/driver-1.sock|grpc||false\n"
        );
    }
}
