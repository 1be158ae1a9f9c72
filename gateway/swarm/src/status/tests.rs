//! Statuses as managers of Docker 20.10 sent them.

use tonic::{Code, Status};

use super::{Reaction, reaction};

#[test]
fn each_answer_of_a_manager_has_one_reaction() {
    for (code, text, expected) in [
        (Code::NotFound, "node not registered", Reaction::NewSession),
        (
            Code::InvalidArgument,
            "session invalid",
            Reaction::Displaced,
        ),
        (Code::Aborted, "dispatcher is stopped", Reaction::NewSession),
        (Code::Aborted, "node must disconnect", Reaction::NewSession),
        (
            Code::Unavailable,
            "rpc error: no leader",
            Reaction::OtherManager,
        ),
        (
            Code::Unavailable,
            "node x exceeded rate limit count of registrations",
            Reaction::SlowDown,
        ),
        (
            Code::PermissionDenied,
            "Permission denied: node 2v4m0t0g9q1u1h0ibxoa1nzlx was removed from swarm",
            Reaction::Removed,
        ),
        (
            Code::PermissionDenied,
            "Permission denied: remote certificate not part of organization",
            Reaction::OtherManager,
        ),
        (Code::Ok, "", Reaction::NewSession),
        (Code::Internal, "h2 protocol error", Reaction::OtherManager),
    ] {
        assert_eq!(
            reaction(&Status::new(code, text)),
            expected,
            "{code:?} {text}"
        );
    }
}

#[test]
fn text_alone_removes_no_node() {
    for code in [
        Code::Unavailable,
        Code::Unknown,
        Code::NotFound,
        Code::Internal,
    ] {
        let status = Status::new(code, "node x was removed from swarm");
        assert_ne!(reaction(&status), Reaction::Removed, "{code:?}");
    }
}
