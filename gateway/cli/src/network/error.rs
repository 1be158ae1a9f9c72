//! The errors of `switchyard network`.

use std::io;
use std::path::PathBuf;

use switchyard_network::nft::NftError;

/// Reason why the tables cannot be shown or removed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NetworkError {
    #[error(transparent)]
    Nft(#[from] NftError),
    #[error(
        "nothing is removed: the daemon at {} has network.bridge.driver = \"native\", and would make the tables again within seconds: stop it, or restart it with \"cni\"",
        .0.display()
    )]
    Daemon(PathBuf),
    #[error(
        "nothing is removed: the tables are needed by {0}: end such tasks and pods first, or see --force"
    )]
    Sandboxes(String),
    #[error(
        "nothing is removed: table {family} {name} has {ports} published ports, and {hairpins} containers with such ports: end them first; if none runs any more, see --force"
    )]
    Ports {
        family: &'static str,
        name: String,
        ports: usize,
        hairpins: usize,
    },
    #[error("not all is removed: {0}")]
    Left(String),
    #[error("cannot write the output")]
    Output(#[from] io::Error),
}
