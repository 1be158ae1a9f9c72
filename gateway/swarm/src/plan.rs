//! The plan of a task of a service: what is created for it, in the gateway's types.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use switchyard_core::Error;
use switchyard_core::image::Credentials;
use switchyard_core::spec::{Protocol, SandboxSpec, TaskSpec};
use switchyard_linux::beginning;

/// The time between the stop signal and SIGKILL where a service says nothing, as with docker.
pub(crate) const STOP_GRACE: Duration = Duration::from_secs(10);

/// Maximum number of characters quoted from a wrong kind of health check.
const KIND_SHOWN: usize = 80;

/// The shortest time of a health check, as with docker.
const TIME_MIN: Duration = Duration::from_millis(1);

/// Properties of the node and its cluster that plans depend on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanContext {
    /// The id of the cluster.
    pub cluster_id: String,
    /// The id of the node.
    pub node_id: String,
    /// Its host name, as it has described itself.
    pub hostname: String,
    /// Its architecture, as `uname` writes it.
    pub architecture: String,
    /// The directory below which each task has one for its log.
    pub log_dir: PathBuf,
    /// True if mounts can be recursively read-only, which they then are, as docker makes them.
    pub recursive_readonly_mounts: bool,
    /// The CDI names that services may name in a label.
    pub allowed_devices: Arc<AllowedDevices>,
}

/// The CDI names of the devices that services may name.
pub type AllowedDevices = BTreeSet<String>;

/// Everything that is needed to prepare and start a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskPlan {
    /// The image.
    pub image: ServiceImage,
    /// The sandbox; each task has its own.
    pub sandbox: SandboxSpec,
    /// The task in it, without its files.
    pub task: TaskSpec,
    /// Secrets and configs, which become files.
    pub files: Vec<TaskFile>,
    /// Ports of the node that lead to the task.
    pub ports: Vec<PublishedPort>,
    /// The devices that the scheduler has chosen.
    pub devices: Vec<AssignedDevice>,
    /// Volumes that are removed with the task.
    pub anonymous_volumes: Vec<String>,
    /// The health check.
    pub health: HealthCheck,
    /// The time between the stop signal and SIGKILL.
    pub stop_grace: Duration,
    /// The rotation of the log.
    pub rotation: LogRotation,
}

/// The image of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceImage {
    /// Its name, normally with a digest that the manager has resolved.
    pub reference: String,
    /// True if the name has a digest, so that an image of this name is the right one.
    pub has_digest: bool,
    /// The credentials for its pull.
    pub credentials: Credentials,
}

/// A secret or config that becomes a file of the task.
#[derive(Clone, PartialEq, Eq)]
pub struct TaskFile {
    /// Absolute path in the task.
    pub destination: PathBuf,
    /// Its content.
    pub content: Arc<[u8]>,
    /// Its owner in the task.
    pub uid: u32,
    /// Its group in the task.
    pub gid: u32,
    /// Its permission bits, with those for set-user-id and so on.
    pub mode: u32,
}

/// A port of the node that leads to a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedPort {
    /// Its name in the service; may be empty.
    pub name: String,
    /// Transport protocol.
    pub protocol: Protocol,
    /// Port in the task.
    pub target: u16,
    /// Port on the node; `None` to be chosen.
    pub published: Option<u16>,
}

/// A device of the node, as the node offers it to the scheduler and as the scheduler assigns it to a task.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct AssignedDevice {
    /// The kind of the generic resource: the resource or the full name of the device's group.
    pub kind: String,
    /// The slot of the device.
    pub id: String,
}

/// The health check of a task.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HealthCheck {
    /// The command.
    pub command: HealthCommand,
    /// The time from the end of a check to the next; `None` for the image's or the default, as with each that follows.
    pub interval: Option<Duration>,
    /// The time after which a check has failed.
    pub timeout: Option<Duration>,
    /// Consecutive failures after which the task is unhealthy.
    pub retries: Option<u32>,
    /// The time after the start in which failures do not count.
    pub start_period: Option<Duration>,
    /// The interval during that time, until the task is healthy.
    pub start_interval: Option<Duration>,
}

/// The command of a health check.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum HealthCommand {
    /// That of the image, if it has one.
    #[default]
    Image,
    /// None: the health is not checked.
    None,
    /// This command line.
    Exec(Vec<String>),
    /// This text, by the image's shell.
    Shell(String),
}

/// The limits at which the log of a task is rotated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogRotation {
    /// The size of a file at which it is; `None` for never.
    pub max_size: Option<u64>,
    /// The number of files that are kept, at least 1.
    pub max_files: u32,
}

/// Checks a time of a health check.
///
/// # Errors
/// `InvalidArgument`, naming the field, if it is shorter than docker allows.
pub(crate) fn check_time(field: &str, time: Option<Duration>) -> Result<Option<Duration>, Error> {
    match time {
        Some(short) if short < TIME_MIN => Err(Error::invalid(
            field,
            format!("{short:?} is less than {TIME_MIN:?}"),
        )),
        time => Ok(time),
    }
}

// === impl HealthCommand ===

impl HealthCommand {
    /// The command that these words of docker's are for: `NONE`, `CMD` and a command line, or `CMD-SHELL` and a text.
    /// No words are for that of the image.
    ///
    /// # Errors
    /// What is wrong with them.
    pub(crate) fn parse(words: &[String]) -> Result<Self, String> {
        match words {
            [] => Ok(Self::Image),
            [kind] if kind == "NONE" => Ok(Self::None),
            [kind, command @ ..] if kind == "CMD" && !command.is_empty() => {
                Ok(Self::Exec(command.to_vec()))
            }
            [kind, script] if kind == "CMD-SHELL" => Ok(Self::Shell(script.clone())),
            [kind, ..] => {
                let shown = beginning(kind, KIND_SHOWN);
                Err(format!(
                    "it begins with {shown:?}: expected NONE, CMD and its command, or CMD-SHELL and its text"
                ))
            }
        }
    }
}

// === impl TaskFile ===

impl fmt::Debug for TaskFile {
    /// Without the content.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            destination,
            content,
            uid,
            gid,
            mode,
        } = self;
        f.debug_struct("TaskFile")
            .field("destination", destination)
            .field("bytes", &content.len())
            .field("uid", uid)
            .field("gid", gid)
            .field("mode", &format_args!("{mode:o}"))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_below_a_millisecond_are_refused() {
        let micro = Duration::from_micros(999);
        assert!(
            check_time("f", Some(micro))
                .unwrap_err()
                .to_string()
                .starts_with("f: 999µs is less than 1ms")
        );
        assert_eq!(check_time("f", Some(TIME_MIN)).unwrap(), Some(TIME_MIN));
        assert_eq!(check_time("f", None).unwrap(), None);
    }
}
