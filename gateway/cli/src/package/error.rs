//! Reasons why the package is not prepared for its removal, or for what follows its installation.

use std::io;

use crate::nomad_links::LinkError;

/// Reason why a step failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PackageError {
    #[error(transparent)]
    Links(#[from] LinkError),
    #[error("links of Nomad agents to this program may be left")]
    LinksLeft,
    #[error(
        "not all links of Nomad agents to this program are back: each installation tries again"
    )]
    LinksAway,
    #[error("cannot write the output")]
    Output(#[from] io::Error),
}
