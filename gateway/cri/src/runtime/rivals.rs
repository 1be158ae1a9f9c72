//! Pods and containers that cannot be read: a client that takes one for gone makes another attempt of it, whose name
//! differs in the attempt alone.

use switchyard_core::Result;
use switchyard_core::gateway::Scope;

/// Checks that no other attempt of the pod with this name exists that cannot be read.
pub(super) fn check_pod(scope: &Scope, name: &str) -> Result<()> {
    let is_rival = |other: &str| pod(other) == pod(name);
    scope.sandboxes().check_rivals(name, is_rival)
}

/// As [`check_pod`], for a container.
pub(super) fn check_container(scope: &Scope, name: &str) -> Result<()> {
    let is_rival = |other: &str| container(other) == container(name);
    scope.sandboxes().check_rivals(name, is_rival)
}

/// The name of a sandbox, `POD_NAMESPACE_UID_ATTEMPT`, without the attempt.
fn pod(name: &str) -> &str {
    name.rsplit_once('_').map_or(name, |(pod, _)| pod)
}

/// The name of a task, `CONTAINER_ATTEMPT_SANDBOX`, without the attempt.
fn container(name: &str) -> (&str, &str) {
    let (attempt, sandbox) = name.rsplit_once('_').unwrap_or((name, ""));
    (pod(attempt), sandbox)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_of_one_object_are_rivals_and_others_are_not() {
        assert_eq!(pod("web_shop_u-1_0"), pod("web_shop_u-1_12"));
        assert_ne!(pod("web_shop_u-1_0"), pod("web_shop_u-2_0"));
        assert_eq!(container("main_0_ab"), container("main_3_ab"));
        assert_ne!(container("main_0_ab"), container("side_0_ab"));
        assert_ne!(container("main_0_ab"), container("main_0_cd"));
    }
}
