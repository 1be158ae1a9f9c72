//! The log of a task: its directory, and when it is rotated.

use std::path::PathBuf;

use switchyard_core::spec::Output;
use switchyard_core::{Error, Result};
use switchyard_docker_options::sizes::size;
use switchyard_proto::docker::swarmkit::v1 as swarm;

use super::request::TaskRequest;
use crate::plan::LogRotation;

/// The name of the log in the directory of a task.
const FILE: &str = "output.log";

/// The rotation where the service says nothing: that of docker's driver `local`.
const DEFAULT: LogRotation = LogRotation {
    max_size: Some(20 << 20),
    max_files: 5,
};

/// The most files of a log.
const FILES_MAX: u32 = 1000;

/// Options of docker's drivers that concern the form of their files, which is another one here.
const WITHOUT_EFFECT: [&str; 8] = [
    "compress",
    "env",
    "env-regex",
    "labels",
    "labels-regex",
    "mode",
    "max-buffer-size",
    "tag",
];

/// The destination of a task's output.
#[derive(Debug)]
pub(super) struct Log {
    /// The directory; empty if there is none.
    pub(super) dir: PathBuf,
    pub(super) output: Output,
    pub(super) rotation: LogRotation,
}

/// The log of a task, by the driver that the manager has chosen or else the service's.
pub(super) fn log(asked: &TaskRequest<'_>) -> Result<Log> {
    let (field, driver) = match (&asked.task.log_driver, asked.log_driver) {
        (Some(driver), _) => ("log_driver", Some(driver)),
        (None, driver) => ("spec.log_driver", driver),
    };
    let dir = asked.node.log_dir.join(&asked.identity.task_id);
    let output = Output::Log(dir.join(FILE));
    let Some(swarm::Driver { name, options }) = driver else {
        return Ok(Log {
            dir,
            output,
            rotation: DEFAULT,
        });
    };
    match name.as_str() {
        "" | "json-file" | "local" => {}
        "none" => {
            return Ok(Log {
                dir: PathBuf::new(),
                output: Output::Discard,
                rotation: DEFAULT,
            });
        }
        other => {
            let why = "there are json-file, local and none";
            return Err(Error::unimplemented(format!(
                "{field}.name: there is no log driver {other:?}: {why}"
            )));
        }
    }
    let mut rotation = DEFAULT;
    for (option, value) in options {
        let wrong = |why: &str| Error::invalid(format_args!("{field}.options[{option:?}]"), why);
        match option.as_str() {
            "max-size" if value == "-1" => rotation.max_size = None,
            "max-size" => {
                let bytes = size(value).filter(|bytes| *bytes > 0);
                rotation.max_size =
                    Some(bytes.ok_or_else(|| wrong("it is no size such as \"10m\""))?);
            }
            "max-file" => {
                let files = value
                    .parse()
                    .ok()
                    .filter(|files| (1..=FILES_MAX).contains(files));
                rotation.max_files = files.ok_or_else(|| wrong("it is no number of 1 to 1000"))?;
            }
            known if WITHOUT_EFFECT.contains(&known) => {}
            _ => return Err(wrong("there is no such option here")),
        }
    }
    Ok(Log {
        dir,
        output,
        rotation,
    })
}
