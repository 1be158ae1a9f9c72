//! The data that templates can name: the service, the node and the task, and the other files of the task.

use std::borrow::Cow;
use std::collections::BTreeMap;

/// The facts of a task.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Facts {
    /// `.Service.ID`.
    pub(crate) service_id: String,
    /// `.Service.Name`.
    pub(crate) service_name: String,
    /// `.Service.Labels`.
    pub(crate) service_labels: BTreeMap<String, String>,
    /// `.Node.ID`.
    pub(crate) node_id: String,
    /// `.Node.Hostname`.
    pub(crate) node_hostname: String,
    /// `.Node.Platform.Architecture`.
    pub(crate) architecture: String,
    /// `.Node.Platform.OS`.
    pub(crate) os: String,
    /// `.Task.ID`.
    pub(crate) task_id: String,
    /// `.Task.Name`.
    pub(crate) task_name: String,
    /// `.Task.Slot`: the id of the node for a task of a global service.
    pub(crate) task_slot: String,
}

/// A file or variable that a template may use.
pub(crate) type FileContent<'a> = Option<Cow<'a, [u8]>>;

/// The secrets, configs and variables of the task, for the templates in secrets and configs.
pub(crate) trait Files {
    /// Returns whether the functions exist: fields of services have none of them.
    fn are_available(&self) -> bool {
        true
    }

    /// The secret with this target, as its file is named in the service.
    fn secret(&self, target: &[u8]) -> FileContent<'_>;

    /// The config with this target.
    fn config(&self, target: &[u8]) -> FileContent<'_>;

    /// The environment variable; empty if the task does not have it.
    fn env(&self, name: &[u8]) -> Cow<'_, [u8]>;
}

/// No files: what fields of services can use.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NoFiles;

impl Files for NoFiles {
    fn are_available(&self) -> bool {
        false
    }

    fn secret(&self, _: &[u8]) -> FileContent<'_> {
        None
    }

    fn config(&self, _: &[u8]) -> FileContent<'_> {
        None
    }

    fn env(&self, _: &[u8]) -> Cow<'_, [u8]> {
        Cow::Borrowed(b"")
    }
}

/// A structure whose fields a template can name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Structure {
    Root,
    Service,
    Node,
    Platform,
    Task,
}

/// A field of a structure.
#[derive(Debug, Clone, Copy)]
pub(super) enum Field<'a> {
    Structure(Structure),
    Text(&'a str),
    Labels(&'a BTreeMap<String, String>),
}

// === impl Structure ===

impl Structure {
    /// The field of this name.
    pub(super) fn field<'a>(self, name: &[u8], facts: &'a Facts) -> Option<Field<'a>> {
        Some(match (self, name) {
            (Self::Root, b"Service") => Field::Structure(Self::Service),
            (Self::Root, b"Node") => Field::Structure(Self::Node),
            (Self::Root, b"Task") => Field::Structure(Self::Task),
            (Self::Service, b"ID") => Field::Text(&facts.service_id),
            (Self::Service, b"Name") => Field::Text(&facts.service_name),
            (Self::Service, b"Labels") => Field::Labels(&facts.service_labels),
            (Self::Node, b"ID") => Field::Text(&facts.node_id),
            (Self::Node, b"Hostname") => Field::Text(&facts.node_hostname),
            (Self::Node, b"Platform") => Field::Structure(Self::Platform),
            (Self::Platform, b"Architecture") => Field::Text(&facts.architecture),
            (Self::Platform, b"OS") => Field::Text(&facts.os),
            (Self::Task, b"ID") => Field::Text(&facts.task_id),
            (Self::Task, b"Name") => Field::Text(&facts.task_name),
            (Self::Task, b"Slot") => Field::Text(&facts.task_slot),
            (Self::Root | Self::Service | Self::Node | Self::Platform | Self::Task, _) => {
                return None;
            }
        })
    }
}
