//! A support bundle: what somebody who helps needs to know of a node, in one archive without secrets.
//!
//! Each part is gathered by itself, within a time and a size; what fails is named in the archive's `MANIFEST`.
//! So it works while the daemon is down, too. Environments, credentials and logs of containers are not asked
//! for, and every text passes [`redact()`].

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use switchyard_config::Sources;

use crate::{StartCheck, redact, within};

mod archive;
mod logs;
mod parts;

use archive::Archive;
use parts::{Context, PARTS};

/// The most that a part may have, in bytes.
const PART_MAX: usize = 8 << 20;

/// The most that all parts together may have, in bytes.
const TOTAL_MAX: usize = 64 << 20;

/// Time limit of a part. The longest is the doctor, which reads facts and then checks everything.
const PART_LIMIT: Duration = Duration::from_secs(120);

/// The sources of a bundle.
#[derive(Debug, Clone)]
pub struct BundleRequest {
    /// The sources of the configuration.
    pub sources: Sources,
    /// The daemon's admin socket, instead of the configured one.
    pub socket: Option<PathBuf>,
    /// The daemon's check of its start.
    pub start_check: Option<StartCheck>,
}

/// A bundle that was written.
#[derive(Debug)]
pub struct BundleReport {
    /// The names of the parts in it.
    pub parts: Vec<String>,
    /// The parts that are missing, and why.
    pub missing: Vec<(String, String)>,
}

/// Reason why no bundle was written.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// The file cannot be created.
    #[error("cannot create {}: choose another file with --output-file", path.display())]
    Create {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The file cannot be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// Writes a bundle to a new file that only its owner can read. If it fails, no file remains.
///
/// # Errors
/// [`BundleError`]; a part that cannot be gathered is none.
pub fn write(path: &Path, request: BundleRequest) -> Result<BundleReport, BundleError> {
    let archive = Archive::create(path).map_err(|source| BundleError::Create {
        path: path.to_owned(),
        source,
    })?;
    let written = gather(archive, request);
    written.map_err(|source| {
        // The failure of the write is what counts.
        let _ = fs::remove_file(path);
        BundleError::Write {
            path: path.to_owned(),
            source,
        }
    })
}

fn gather(mut archive: Archive, request: BundleRequest) -> io::Result<BundleReport> {
    let context = Arc::new(Context::of(request));
    let mut report = BundleReport {
        parts: Vec::new(),
        missing: Vec::new(),
    };
    let mut manifest = String::new();
    let mut left = TOTAL_MAX;
    for (name, part) in PARTS {
        let context = Arc::clone(&context);
        let gathered = within(name, PART_LIMIT, move || part(&context));
        let gathered = gathered
            .map_err(|finding| finding.found)
            .and_then(|result| result);
        match gathered {
            Ok(text) => {
                let text = redact(&String::from_utf8_lossy(&text));
                let (bytes, is_cut) = cut(text.as_bytes(), PART_MAX.min(left));
                left -= bytes.len();
                archive.append(name, bytes)?;
                let note = if is_cut { ", cut" } else { "" };
                manifest.push_str(&format!("{name}: {} bytes{note}\n", bytes.len()));
                report.parts.push((*name).to_owned());
            }
            Err(why) => {
                let why = redact(&why);
                manifest.push_str(&format!("{name}: missing: {why}\n"));
                report.missing.push(((*name).to_owned(), why));
            }
        }
    }
    archive.append("MANIFEST", manifest.as_bytes())?;
    archive.finish()?;
    Ok(report)
}

/// The beginning of some bytes, and whether that is not all of them.
fn cut(bytes: &[u8], max: usize) -> (&[u8], bool) {
    (bytes.get(..max).unwrap_or(bytes), bytes.len() > max)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn request(dir: &Path) -> BundleRequest {
        let file = dir.join("config.toml");
        let paths = format!(
            "state = {:?}\nrun = {:?}",
            dir.join("state"),
            dir.join("run")
        );
        let group = "vendor = \"a\"\ntype = \"t\"\npaths = [\"/dev/a\"]\nenvironment = { LICENCE = \"planted-s3cr3t\" }";
        fs::write(
            &file,
            format!(
                "version = 1\n[paths]\n{paths}\n[audit]\nto = \"file\"\nfile = {:?}\n[[devices.groups]]\n{group}\n",
                dir.join("audit.log")
            ),
        )
        .unwrap();
        let sources = Sources {
            file: Some(file),
            ..Sources::default()
        };
        BundleRequest {
            sources,
            socket: None,
            start_check: None,
        }
    }

    #[test]
    fn bundle_of_a_node_without_daemon_says_what_is_missing() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("state/containerd/containerd.log");
        fs::create_dir_all(log.parent().unwrap()).unwrap();
        fs::write(
            &log,
            "pulled with Authorization: Bearer planted-s3cr3t\nstarted\n",
        )
        .unwrap();
        fs::write(dir.path().join("audit.log"), "{\"operation\":\"exec\"}\n").unwrap();
        let path = dir.path().join("bundle.tar.gz");
        let report = write(&path, request(dir.path())).unwrap();
        assert!(
            report.missing.iter().any(|(name, _)| name == "status.json"),
            "{report:?}"
        );
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );

        let mut archive =
            tar::Archive::new(flate2::read::GzDecoder::new(fs::File::open(&path).unwrap()));
        let mut texts = std::collections::BTreeMap::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let path = entry.path().unwrap().into_owned();
            let name = path
                .strip_prefix("switchyard-support")
                .unwrap()
                .display()
                .to_string();
            let mut text = String::new();
            entry.read_to_string(&mut text).unwrap();
            assert!(!text.contains("planted-s3cr3t"), "{name}: {text}");
            texts.insert(name, text);
        }
        assert!(
            texts["MANIFEST"].contains("status.json: missing: "),
            "{}",
            texts["MANIFEST"]
        );
        assert!(
            texts["doctor.json"].contains("SY801"),
            "{}",
            texts["doctor.json"]
        );
        assert!(
            texts["config-files.toml"].contains("LICENCE"),
            "{}",
            texts["config-files.toml"]
        );
        assert!(texts["logs/containerd.log"].ends_with("[redacted]\nstarted\n"));
        assert!(!texts["kernel.txt"].is_empty() && !texts["logs/kernel.log"].is_empty());
        assert_eq!(texts["logs/audit.log"], "{\"operation\":\"exec\"}\n");
    }

    #[test]
    fn existing_file_is_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("precious");
        fs::write(&path, "precious").unwrap();
        let error = write(&path, request(dir.path())).unwrap_err();
        assert!(matches!(error, BundleError::Create { .. }), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn long_parts_are_cut() {
        assert_eq!(cut(b"abc", 2), (&b"ab"[..], true));
        assert_eq!(cut(b"abc", 3), (&b"abc"[..], false));
    }
}
