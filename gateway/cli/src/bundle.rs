//! `switchyard support-bundle`: an archive for somebody who helps.

use std::path::{Path, PathBuf};

use clap::Args;
use jiff::Timestamp;
use switchyard_config::Sources;
use switchyard_doctor::bundle::{self, BundleReport, BundleRequest};
use switchyard_operator_api::text::printable;

use super::error::CliError;
use super::{admin_socket, config_check};
use crate::output::print;

/// The longest part of a file name that is taken from the name of the node, in characters.
const HOST_MAX: usize = 64;

/// Target and sources of the archive.
#[derive(Debug, Args)]
pub(super) struct BundleArgs {
    /// The configuration file; that of the running daemon, or /etc/switchyard/config.toml.
    #[arg(long, short, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// The daemon's admin socket; that of the running daemon, or else the configured one.
    #[arg(long, value_name = "PATH", env = "SWITCHYARD_ADMIN_SOCKET")]
    socket: Option<PathBuf>,
    /// The archive, which must not exist yet; switchyard-support-HOST-TIME.tar.gz in the current directory.
    #[arg(long, value_name = "PATH")]
    output_file: Option<PathBuf>,
}

/// Writes the archive, and says what is not in it.
pub(super) fn support_bundle(args: &BundleArgs, sources: Sources) -> Result<(), CliError> {
    let path = args.output_file.clone().unwrap_or_else(default_file);
    let socket = args
        .socket
        .clone()
        .unwrap_or_else(|| admin_socket::find(&sources));
    let request = BundleRequest {
        socket: Some(socket),
        sources,
        start_check: Some(config_check::other_faults),
    };
    let report = bundle::write(&path, request)?;
    Ok(print(text(&path, &report))?)
}

fn text(path: &Path, BundleReport { parts, missing }: &BundleReport) -> String {
    let mut text = format!("{}: {} parts\n", path.display(), parts.len());
    for (name, why) in missing {
        text.push_str(&format!("missing: {name}: {}\n", printable(why)));
    }
    text.push_str(
        "Tokens, passwords and keys that were recognised are replaced. Names, addresses and images are not: read it before you pass it on.\n",
    );
    text
}

fn default_file() -> PathBuf {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    PathBuf::from(format!(
        "switchyard-support-{}-{}.tar.gz",
        file_word(&host),
        Timestamp::now().strftime("%Y%m%dT%H%M%SZ")
    ))
}

/// The name of a node as a part of a file name.
fn file_word(host: &str) -> String {
    let word: String = host
        .trim()
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || matches!(c, '-' | '.') {
                c
            } else {
                '_'
            }
        })
        .take(HOST_MAX)
        .collect();
    if word.is_empty() {
        "node".to_owned()
    } else {
        word
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_have_no_slash_and_no_blank() {
        assert_eq!(file_word("node-1.example\n"), "node-1.example");
        assert_eq!(file_word("../a b"), ".._a_b");
        assert_eq!(file_word(""), "node");
        assert_eq!(file_word(&"x".repeat(100)).len(), HOST_MAX);
    }
}
