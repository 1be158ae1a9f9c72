//! 6xx: Docker Swarm.

use std::time::{Duration, SystemTime};

use switchyard_operator_api::text::rfc3339;

use super::*;

const HOUR: Duration = Duration::from_secs(3600);

/// A node that is a member, with a certificate that began before some hours and ends in some.
fn member(node: &mut TestNode, before: u32, after: u32) {
    let now = SystemTime::now();
    node.swarm = SwarmView {
        state: "member".to_owned(),
        manager: Some("10.0.0.1:2377".to_owned()),
        certificate_begins: Some(rfc3339(now - HOUR * before)),
        certificate_ends: Some(rfc3339(now + HOUR * after)),
        ..SwarmView::default()
    };
}

/// A configuration by which the node joins.
const BY_FILE: &str = "[swarm]\njoin_token_file = \"/etc/switchyard/token\"\nmanagers = [\"m1\"]";

#[test]
fn node_that_does_not_join_though_it_is_to() {
    check(|node| node.config(BY_FILE), &["SY601 warning"]);
    let joining = |node: &mut TestNode, problems: &[&str]| {
        node.config(BY_FILE);
        node.swarm.state = "joining".to_owned();
        node.swarm.problems = problems
            .iter()
            .map(|problem| (*problem).to_owned())
            .collect();
    };
    check(|node| joining(node, &[]), &[]);
    let found = check(
        |node| joining(node, &["the token is cut"]),
        &["SY601 warning"],
    );
    assert!(found[0].found.contains("the token is cut"), "{found:?}");
    check(
        |node| {
            joining(node, &["the token is cut"]);
            node.config(&format!("{BY_FILE}\nenabled = false"));
        },
        &[],
    );
}

#[test]
fn membership_that_has_ended_or_has_no_session() {
    let found = check(
        |node| node.swarm.state = "ended".to_owned(),
        &["SY602 error"],
    );
    // A clock that is set right and a disk that answers again end it, and a leave would cost the node its tasks.
    assert_eq!(found[0].command.as_deref(), Some("switchyard swarm status"));
    check(|node| member(node, 24 * 30, 24 * 60), &[]);
    check(
        |node| {
            member(node, 24 * 30, 24 * 60);
            node.swarm.manager = None;
        },
        &["SY603 warning"],
    );
}

#[test]
fn node_that_another_machine_is_too_or_that_is_to_be_a_manager() {
    let member_with = |duplicate: bool, promoted: bool, session: bool| {
        move |node: &mut TestNode| {
            member(node, 24 * 30, 24 * 60);
            node.swarm.node = Some("n7".to_owned());
            node.swarm.is_duplicate = duplicate;
            node.swarm.is_promoted = promoted;
            if !session {
                node.swarm.manager = None;
                node.swarm.problems = vec!["the session was replaced".to_owned()];
            }
        }
    };
    for (duplicate, promoted, session, expected) in [
        (true, false, true, &["SY607 error"][..]),
        // It is not for want of a manager that it has none.
        (true, false, false, &["SY607 error"][..]),
        (false, true, true, &["SY608 warning"][..]),
        (false, true, false, &["SY603 warning", "SY608 warning"][..]),
        (true, true, false, &["SY607 error", "SY608 warning"][..]),
        (false, false, false, &["SY603 warning"][..]),
    ] {
        let found = check(member_with(duplicate, promoted, session), expected);
        for finding in found.iter().filter(|finding| finding.code != "SY603") {
            assert!(finding.found.contains("n7"), "{finding:?}");
        }
    }
    // One that has left is nobody's clone.
    check(
        |node| {
            member_with(true, true, false)(node);
            node.swarm.state = "leaving".to_owned();
        },
        &[],
    );
}

#[test]
fn certificate_that_ends_and_a_clock_that_is_wrong() {
    check(|node| member(node, 24 * 84, 24 * 6), &["SY604 warning"]);
    // One that lives for an hour.
    check(|node| member(node, 1, 1), &[]);
    check(|node| member(node, 9, 1), &["SY604 warning"]);
    let shifted = |node: &mut TestNode, earlier: bool| {
        member(node, 0, 0);
        let now = SystemTime::now();
        let (begins, ends) = if earlier {
            (now - HOUR * 9, now - HOUR)
        } else {
            (now + HOUR, now + HOUR * 9)
        };
        node.swarm.certificate_begins = Some(rfc3339(begins));
        node.swarm.certificate_ends = Some(rfc3339(ends));
    };
    check(|node| shifted(node, true), &["SY605 error"]);
    check(|node| shifted(node, false), &["SY605 error"]);
}

#[test]
fn dockerd_beside_a_worker() {
    check(
        |node| {
            member(node, 24, 24 * 60);
            node.socket("/run/docker.sock", true);
        },
        &["SY505 note", "SY606 note"],
    );
}
