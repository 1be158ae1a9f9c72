//! The parts of a view that come from the OCI runtime spec of a sandbox or task.
//!
//! The spec is read as JSON, because another version of this program, or of containerd, may have written it.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use switchyard_core::backend::Inspection;

use super::InspectionView;
use super::budget::Budget;

/// The file systems whose options hold no secrets, and are shown with their values.
const PLAIN_FILE_SYSTEMS: &[&str] = &[
    "",
    "none",
    "bind",
    "rbind",
    "proc",
    "sysfs",
    "tmpfs",
    "devpts",
    "mqueue",
    "cgroup",
    "cgroup2",
    "overlay",
    "hugetlbfs",
];

/// The command of the main process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandView {
    /// The program.
    pub program: String,
    /// The number of its arguments.
    pub arguments: usize,
    /// The arguments; `None` if they are withheld.
    pub values: Option<Vec<String>>,
    /// The working directory.
    pub directory: String,
    /// True if it has a terminal.
    pub terminal: bool,
}

/// A mount.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountView {
    /// Source of the mount.
    pub source: String,
    /// Path in the container.
    pub target: String,
    /// The type of the file system.
    #[serde(rename = "type")]
    pub file_system: String,
    /// The options; those of file systems that may take passwords have their names alone.
    pub options: Vec<String>,
}

/// The confinement of a process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecurityView {
    /// True if the root file system is read-only.
    pub readonly_rootfs: bool,
    /// True if exec can gain no privileges.
    pub no_new_privileges: bool,
    /// True if system calls are filtered.
    pub seccomp: bool,
    /// The AppArmor profile; empty if there is none.
    pub apparmor: String,
    /// The capabilities that its processes can have.
    pub capabilities: Vec<String>,
}

/// The view with what the backend knows.
pub(super) fn add(
    view: InspectionView,
    inspection: &Inspection,
    budget: &mut Budget,
) -> InspectionView {
    let view = InspectionView {
        runtime: inspection.runtime_type.clone(),
        ..view
    };
    if inspection.runtime_spec.is_empty() {
        return view;
    }
    let spec: Value = match serde_json::from_str(&inspection.runtime_spec) {
        Ok(spec) => spec,
        Err(error) => {
            let why = format!("the stored runtime spec is not JSON: {error}");
            return InspectionView {
                unavailable: Some(why),
                ..view
            };
        }
    };
    let process = &spec["process"];
    let texts = |list: &Value| -> Vec<String> { list_of(list).map(text).collect() };
    let devices = list_of(&spec["linux"]["devices"]).map(|device| text(&device["path"]));
    let variables = list_of(&process["env"]).filter_map(Value::as_str);
    InspectionView {
        command: command(process, budget),
        mounts: list_of(&spec["mounts"])
            .filter_map(|found| mount(found, budget))
            .collect(),
        environment: variables
            .filter_map(|variable| {
                let (name, value) = variable.split_once('=').unwrap_or((variable, ""));
                budget.withhold(name, value)
            })
            .collect(),
        security: process.is_object().then(|| SecurityView {
            readonly_rootfs: spec["root"]["readonly"] == true,
            no_new_privileges: process["noNewPrivileges"] == true,
            seccomp: spec["linux"]["seccomp"].is_object(),
            apparmor: text(&process["apparmorProfile"]),
            capabilities: texts(&process["capabilities"]["bounding"]),
        }),
        cgroup: spec["linux"]["cgroupsPath"].as_str().map(str::to_owned),
        device_nodes: devices.filter(|path| budget.admit(path.len())).collect(),
        ..view
    }
}

/// The command, of which arguments may be secret.
fn command(process: &Value, budget: &mut Budget) -> Option<CommandView> {
    let (program, arguments) = process["args"].as_array()?.split_first()?;
    let values = budget.shows_secrets().then(|| {
        let texts = arguments.iter().map(text);
        texts
            .filter(|argument| budget.admit(argument.len()))
            .collect()
    });
    Some(CommandView {
        program: text(program),
        arguments: arguments.len(),
        values,
        directory: text(&process["cwd"]),
        terminal: process["terminal"] == true,
    })
}

fn mount(mount: &Value, budget: &mut Budget) -> Option<MountView> {
    let file_system = text(&mount["type"]);
    let is_plain = PLAIN_FILE_SYSTEMS.contains(&file_system.as_str()) || budget.shows_secrets();
    let option = |option: &Value| match (text(option), is_plain) {
        (option, true) => option,
        (option, false) => option
            .split_once('=')
            .map_or(option.clone(), |(name, _)| format!("{name}=…")),
    };
    let options: Vec<_> = list_of(&mount["options"]).map(option).collect();
    let source = text(&mount["source"]);
    let target = text(&mount["destination"]);
    let bytes =
        source.len() + target.len() + options.iter().map(|option| option.len() + 3).sum::<usize>();
    budget.admit(bytes).then_some(MountView {
        source,
        target,
        file_system,
        options,
    })
}

fn list_of(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// The text of a JSON string; empty for anything else.
fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
