//! Invariants for arbitrary bytes as a template: called by the fuzz target and the tests.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::facts::{Facts, FileContent, Files};
use super::{FIELD_MAX, expand};

/// Facts of a task.
pub(crate) fn facts() -> Facts {
    Facts {
        service_id: "svc1".into(),
        service_name: "web".into(),
        service_labels: BTreeMap::from([
            ("env".to_owned(), "prod".to_owned()),
            ("com.acme.team".to_owned(), "blue".to_owned()),
        ]),
        node_id: "node1".into(),
        node_hostname: "host-1".into(),
        architecture: "x86_64".into(),
        os: "linux".into(),
        task_id: "task1".into(),
        task_name: "web.3.task1".into(),
        task_slot: "3".into(),
    }
}

/// Files of a task.
pub(super) struct Given;

impl Files for Given {
    fn secret(&self, target: &[u8]) -> FileContent<'_> {
        match target {
            b"db_password" => Some(Cow::Borrowed(b"hunter2")),
            b"large" => Some(Cow::Owned(vec![b'x'; 500 << 10])),
            b"binary" => Some(Cow::Borrowed(b"\xff\x00")),
            _ => None,
        }
    }

    fn config(&self, target: &[u8]) -> FileContent<'_> {
        (target == b"/etc/site.conf").then_some(Cow::Borrowed(b"site"))
    }

    fn env(&self, name: &[u8]) -> Cow<'_, [u8]> {
        if name == b"PORT" {
            Cow::Borrowed(b"80")
        } else {
            Cow::Borrowed(b"")
        }
    }
}

/// Expands bytes as a template: they are refused, or give a bounded result, the same each time.
///
/// # Panics
/// An invariant is violated.
pub(crate) fn check_any(data: &[u8]) {
    let facts = facts();
    let first = expand(data, &facts, &Given, FIELD_MAX);
    if let Ok(made) = &first {
        assert!(made.bytes.len() <= FIELD_MAX);
        if !data.windows(2).any(|two| two == b"{{") {
            assert_eq!(made.bytes, data);
        }
    }
    assert_eq!(expand(data, &facts, &Given, FIELD_MAX), first);
}
