//! The known vulnerabilities of the containerd and the runtimes that this node has.

use std::collections::BTreeSet;

use switchyard_core::backend::Advisory;

use crate::client::contact::Contact;
use crate::node::Node;
use crate::node::advisories::advisories;

impl Node {
    /// The known vulnerabilities of the containerd and the OCI runtimes of this node, by their versions.
    pub(crate) fn advisories(&self) -> Vec<Advisory> {
        let containerd = match self.health.current() {
            Contact::Up { version } => Some(("containerd".to_owned(), version)),
            Contact::Down { .. } => None,
        };
        advisories(
            self.probes.versions().into_iter().chain(containerd),
            &self.context.settings().advisories.ignore,
        )
    }

    /// Logs the advisories for programs and versions that are not in `logged` yet, and adds them.
    pub(crate) fn log_advisories(&self, logged: &mut BTreeSet<(String, String)>) {
        for Advisory {
            program,
            version,
            ids,
        } in self.advisories()
        {
            if logged.insert((program.clone(), version.clone())) {
                tracing::info!(
                    program,
                    version,
                    vulnerabilities = ids.join(", "),
                    "this version has known vulnerabilities: update it, or list it in advisories.ignore if it was fixed under this number"
                );
            }
        }
    }
}
