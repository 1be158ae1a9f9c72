//! Check whether this program may go, or an earlier version replace it: what made the network of a sandbox has to end it.

use std::process::ExitCode;

use super::removal;
use crate::admin_socket;
use crate::attachments::NativeSandboxes;
use crate::error::CliError;
use crate::output::print_error;
use crate::sources::own_sources;

/// The exit status if it may not. A program that fails for another reason must not keep the node from getting another version.
const NEEDED: u8 = 3;

/// Looks for such sandboxes, and says what to do about them.
pub(super) fn networks() -> Result<ExitCode, CliError> {
    let socket = admin_socket::find(&own_sources());
    let found = NativeSandboxes::of(&removal::configurations(&socket)?);
    let Some(which) = found.text() else {
        return Ok(ExitCode::SUCCESS);
    };
    print_error(format!(
        "switchyard: only this version and later ones can end the network of {which}, which was made without CNI plugins \
         (network.bridge.driver = \"native\"): set the driver to \"cni\", restart the daemon, let such tasks and pods end, then run \
         'switchyard network clear', and try again\n"
    ))?;
    Ok(ExitCode::from(NEEDED))
}
