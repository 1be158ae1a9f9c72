//! Selection of a sandbox or task by an id, the beginning of one, or a name.

use std::time::SystemTime;

use switchyard_core::backend::UnreadableKind;
use switchyard_core::id::{SandboxId, TaskId};
use switchyard_core::{Error, Result};

/// Maximum number of objects that an error lists for an ambiguous name.
const CANDIDATES: usize = 10;

/// The longest text that can name an object, in bytes.
const NAME_MAX: usize = 4096;

/// The id of a sandbox or task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ObjectId {
    /// A sandbox.
    Sandbox(SandboxId),
    /// A task, and the sandbox that it belongs to.
    Task(TaskId, SandboxId),
    /// An object that cannot be read. Its id may have another form.
    Unreadable(UnreadableKind, String),
}

/// An object that can be meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// Its id.
    pub id: ObjectId,
    /// Its owner.
    pub owner: &'static str,
    /// Its state, in one word.
    pub state: &'static str,
    /// The name under which its owner requested it.
    pub name: String,
    /// The name that its owner's users give it, on one line.
    pub display_name: String,
    /// Time of the request that created it.
    pub created_at: SystemTime,
}

/// Treatment of several objects that match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OfSeveral {
    /// They are listed in an error.
    Refused,
    /// The newest of several objects with one name is meant, such as the latest attempt of a container.
    /// Several whose ids begin alike are listed in an error, and so are those of several owners: whoever names objects of
    /// one owner does not choose which one of another's is meant.
    Newest,
}

impl Candidate {
    /// Returns whether the display name is `name (…)`: with the allocation of a Nomad task, or the like.
    fn is_attempt_of(&self, name: &str) -> bool {
        let distinction = self
            .display_name
            .strip_prefix(name)
            .and_then(|rest| rest.strip_prefix(" ("));
        distinction.is_some_and(|rest| rest.ends_with(')'))
    }

    fn kind(&self) -> &'static str {
        match &self.id {
            ObjectId::Sandbox(_) => "sandbox",
            ObjectId::Task(..) => "task",
            ObjectId::Unreadable(kind, _) => kind.as_str(),
        }
    }

    fn id(&self) -> String {
        match &self.id {
            ObjectId::Sandbox(id) => id.to_string(),
            ObjectId::Task(id, _) => id.to_string(),
            ObjectId::Unreadable(_, id) => id.clone(),
        }
    }
}

/// The place of the object that is meant: by its whole id, by what people call it, by that without the distinction in
/// brackets at its end, by the name of the request, or by the beginning of its id, in this order. A task is preferred to its own sandbox under the same name, as the tasks and
/// sandboxes of Nomad have.
///
/// # Errors
/// `InvalidArgument` for a text that can name nothing; `NotFound`; `FailedPrecondition` if several objects are
/// meant, which are listed.
pub(crate) fn select(candidates: &[Candidate], name: &str, of_several: OfSeveral) -> Result<usize> {
    if name.is_empty() || name.len() > NAME_MAX {
        let why = format!(
            "it has {} bytes, and can have from 1 to {NAME_MAX}",
            name.len()
        );
        return Err(Error::invalid("name", why));
    }
    let matching = |is_meant: &dyn Fn(&Candidate) -> bool| -> Vec<(usize, &Candidate)> {
        candidates
            .iter()
            .enumerate()
            .filter(|(_, object)| is_meant(object))
            .collect()
    };
    let found = [
        (false, matching(&|object| object.id() == name)),
        (
            true,
            without_own_sandbox(matching(&|object| object.display_name == name)),
        ),
        (
            true,
            without_own_sandbox(matching(&|object| object.is_attempt_of(name))),
        ),
        (
            true,
            without_own_sandbox(matching(&|object| object.name == name)),
        ),
        (false, matching(&|object| object.id().starts_with(name))),
    ];
    let Some((is_by_name, found)) = found.into_iter().find(|(_, found)| !found.is_empty()) else {
        return Err(Error::not_found(format!(
            "nothing has the name {name:?}, or an id that begins so: `switchyard ps` lists sandboxes and tasks"
        )));
    };
    let newest = found.iter().max_by_key(|(_, object)| object.created_at);
    let mut owners = found.iter().map(|(_, object)| object.owner);
    let first = owners.next();
    let is_of_one_owner = owners.all(|owner| Some(owner) == first);
    match (newest, found.len(), of_several) {
        (Some((place, _)), 1, _) => Ok(*place),
        (Some((place, _)), _, OfSeveral::Newest) if is_by_name && is_of_one_owner => Ok(*place),
        (_, _, _) => Err(Error::failed_precondition(ambiguous(name, &found))),
    }
}

/// These objects, without the sandbox if the only other one is its task.
fn without_own_sandbox(found: Vec<(usize, &Candidate)>) -> Vec<(usize, &Candidate)> {
    if let [one, other] = found[..] {
        match (&one.1.id, &other.1.id) {
            (ObjectId::Task(_, of), ObjectId::Sandbox(sandbox)) if of == sandbox => {
                return vec![one];
            }
            (ObjectId::Sandbox(sandbox), ObjectId::Task(_, of)) if of == sandbox => {
                return vec![other];
            }
            (_, _) => {}
        }
    }
    found
}

fn ambiguous(name: &str, several: &[(usize, &Candidate)]) -> String {
    let mut text = format!(
        "{name:?} can mean {} objects, so give more of an id:",
        several.len()
    );
    for (_, object) in several.iter().take(CANDIDATES) {
        let Candidate {
            id: _,
            owner,
            state,
            name: _,
            display_name,
            created_at: _,
        } = object;
        text.push_str(&format!(
            "\n  {} {} {owner} {display_name} ({state})",
            object.kind(),
            object.id()
        ));
    }
    if several.len() > CANDIDATES {
        text.push_str(&format!("\n  and {} more", several.len() - CANDIDATES));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use proptest::prelude::*;
    use switchyard_core::ErrorKind;

    use super::*;

    fn sandbox(byte: u8, display_name: &str) -> Candidate {
        Candidate {
            id: ObjectId::Sandbox(SandboxId::from_bytes([byte; 32])),
            owner: "kubernetes",
            state: "ready",
            name: format!("raw-{byte}"),
            display_name: display_name.to_owned(),
            created_at: UNIX_EPOCH + Duration::from_secs(byte.into()),
        }
    }

    fn task(byte: u8, of: u8, display_name: &str) -> Candidate {
        let id = ObjectId::Task(
            TaskId::from_bytes([byte; 32]),
            SandboxId::from_bytes([of; 32]),
        );
        Candidate {
            id,
            ..sandbox(byte, display_name)
        }
    }

    #[track_caller]
    fn check(
        candidates: &[Candidate],
        name: &str,
        expected: std::result::Result<usize, ErrorKind>,
    ) {
        let found = select(candidates, name, OfSeveral::Refused).map_err(|error| error.kind());
        assert_eq!(found, expected, "{name}");
    }

    #[test]
    fn object_is_named_by_id_name_or_beginning_of_its_id() {
        let all = [
            sandbox(0xab, "shop/web"),
            task(0xac, 0xab, "shop/web/nginx"),
            sandbox(0xcd, "ab"),
            sandbox(0x11, "web (3a7c)"),
            task(0x12, 0x11, "web (3a7c)"),
        ];
        check(&all, &"ab".repeat(32), Ok(0));
        check(&all, "shop/web", Ok(0));
        check(&all, "shop/web/nginx", Ok(1));
        check(&all, "aba", Ok(0));
        // A name takes precedence over the beginning of an id.
        check(&all, "ab", Ok(2));
        check(&all, "a", Err(ErrorKind::FailedPrecondition));
        // A Nomad task and its sandbox have the same name.
        check(&all, "web (3a7c)", Ok(4));
        check(&all, "web", Ok(4));
        check(&all, "web (", Err(ErrorKind::NotFound));
        check(&all, "raw-17", Ok(3));
        for unknown in ["shop", "AB", "x", &"ab".repeat(33), "ef"] {
            check(&all, unknown, Err(ErrorKind::NotFound));
        }
        check(&all, "", Err(ErrorKind::InvalidArgument));
        check(&all, &"x".repeat(4097), Err(ErrorKind::InvalidArgument));
    }

    #[test]
    fn object_that_cannot_be_read_is_named_as_any_other() {
        let held = |id: &str, name: &str| Candidate {
            id: ObjectId::Unreadable(UnreadableKind::Task, id.to_owned()),
            name: name.to_owned(),
            created_at: UNIX_EPOCH,
            ..sandbox(0, name)
        };
        let all = [
            task(0xab, 1, "shop/web"),
            held(&"cd".repeat(32), "shop/web"),
            held("Another-Form", ""),
        ];
        check(&all, &"cd".repeat(32), Ok(1));
        check(&all, "cdcd", Ok(1));
        check(&all, "Another-Form", Ok(2));
        check(&all, "Another", Ok(2));
        check(&all, "shop/web", Err(ErrorKind::FailedPrecondition));
        let newest = select(&all, "shop/web", OfSeveral::Newest);
        assert_eq!(newest.ok(), Some(0), "the time of the other is not known");
    }

    #[test]
    fn several_objects_are_listed_in_a_bounded_error() {
        let all: Vec<_> = (0..30)
            .map(|byte| task(byte, 0xff, "shop/web/nginx"))
            .collect();
        let error = select(&all, "shop/web/nginx", OfSeveral::Refused)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("can mean 30 objects") && error.contains("and 20 more"),
            "{error}"
        );
        assert_eq!(error.lines().count(), 12, "{error}");
        assert!(error.contains(&format!(
            "task {} kubernetes shop/web/nginx (ready)",
            "00".repeat(32)
        )));
        // The sandbox of another task is meant as much as the task.
        check(
            &[sandbox(1, "x"), task(2, 3, "x")],
            "x",
            Err(ErrorKind::FailedPrecondition),
        );
    }

    #[test]
    fn of_several_under_one_name_the_newest_can_be_meant() {
        let all = [
            task(0xa1, 1, "shop/web/nginx"),
            task(0xa3, 1, "shop/web/nginx"),
            task(0xa2, 1, "other"),
        ];
        let newest =
            |name: &str| select(&all, name, OfSeveral::Newest).map_err(|error| error.kind());
        assert_eq!(newest("shop/web/nginx"), Ok(1));
        assert_eq!(newest("a2"), Ok(2));
        // Two allocations of one Nomad task.
        let attempts = [
            task(0xb2, 1, "shop/web/nginx (b2)"),
            task(0xb1, 2, "shop/web/nginx (b1)"),
        ];
        assert_eq!(
            select(&attempts, "shop/web/nginx", OfSeveral::Newest).ok(),
            Some(0)
        );
        check(
            &attempts,
            "shop/web/nginx",
            Err(ErrorKind::FailedPrecondition),
        );
        assert_eq!(newest("a"), Err(ErrorKind::FailedPrecondition));
    }

    #[test]
    fn name_that_several_owners_have_means_none_of_their_objects() {
        let of = |owner: &'static str, byte: u8, name: &str| Candidate {
            owner,
            ..task(byte, byte, name)
        };
        let all = [
            of("kubernetes", 0xa1, "shop/web/nginx"),
            of("nomad", 0xa2, "shop/web/nginx"),
            of("nomad", 0xb1, "shop/db/redis (b1)"),
            of("kubernetes", 0xb2, "shop/db/redis"),
            of("swarm", 0xc1, "web.1"),
            of("host", 0xc2, "web.1"),
            of("nomad", 0xd1, "job/group/one"),
            of("nomad", 0xd2, "job/group/one"),
        ];
        for (name, expected) in [
            ("shop/web/nginx", Err(ErrorKind::FailedPrecondition)),
            ("web.1", Err(ErrorKind::FailedPrecondition)),
            // The whole name comes before one without its distinction.
            ("shop/db/redis", Ok(3)),
            ("job/group/one", Ok(7)),
            ("a2", Ok(1)),
        ] {
            let found = select(&all, name, OfSeveral::Newest).map_err(|error| error.kind());
            assert_eq!(found, expected, "{name}");
        }
    }

    proptest! {
        #[test]
        fn no_text_is_too_strange(name in ".{0,200}") {
            let all = [sandbox(0xab, "shop/web"), task(0xac, 0xab, "ä")];
            let _ = select(&all, &name, OfSeveral::Newest);
        }
    }
}
