//! Conditions of single objects that a backend knows of and cannot end by itself.

use std::collections::BTreeMap;

/// The kind of such a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trouble {
    /// The helper process of a task or a sandbox does not answer. Its containers run on.
    SilentShim,
    /// The exit of a task is not persisted yet.
    UnrecordedExit,
    /// A cgroup could not be removed with its object, because it has processes.
    LeftCgroup,
    /// A tree could not be removed, and was set aside.
    TreeSetAside,
    /// A part of an image is missing or wrong.
    DamagedImage,
}

/// The objects by the kind of their trouble: ids, paths, or names of images. A kind without objects is absent.
pub type Troubles = BTreeMap<Trouble, Vec<String>>;

impl Trouble {
    /// All kinds.
    pub const ALL: [Self; 5] = [
        Self::SilentShim,
        Self::UnrecordedExit,
        Self::LeftCgroup,
        Self::TreeSetAside,
        Self::DamagedImage,
    ];

    /// The kind in a few words, as a metric has it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SilentShim => "silent_shim",
            Self::UnrecordedExit => "unrecorded_exit",
            Self::LeftCgroup => "left_cgroup",
            Self::TreeSetAside => "tree_set_aside",
            Self::DamagedImage => "damaged_image",
        }
    }
}
