//! The selection of events on record: by object, owner and time.

use jiff::Timestamp;
use switchyard_core::id::Owner;
use switchyard_operator_api::{EventView, NODE_OWNER};

/// The shortest beginning of an id.
const ID_MIN: usize = 4;

/// The events that somebody asks for. Those about the node itself are always among them: they may be the cause of others.
#[derive(Debug, Clone, Default)]
pub struct EventFilter {
    /// The name of a sandbox or task as lists have it, with or without what is in brackets, or its beginning up to a
    /// slash; one of its names, as of a pod or a job; the beginning of an id.
    pub name: Option<String>,
    /// The owner of the object.
    pub owner: Option<Owner>,
    /// The time of the first event.
    pub since: Option<Timestamp>,
    /// The time before which the last event is.
    pub until: Option<Timestamp>,
}

impl EventFilter {
    /// Returns whether it wants an event. Pure.
    pub(super) fn matches(&self, event: &EventView) -> bool {
        self.is_in_time(event) && (event.owner == NODE_OWNER || self.is_of_object(event))
    }

    fn is_in_time(&self, event: &EventView) -> bool {
        if self.since.is_none() && self.until.is_none() {
            return true;
        }
        event.at.parse::<Timestamp>().is_ok_and(|at| {
            self.since.is_none_or(|since| at >= since) && self.until.is_none_or(|until| at < until)
        })
    }

    fn is_of_object(&self, event: &EventView) -> bool {
        self.owner.is_none_or(|owner| owner.as_str() == event.owner)
            && self.name.as_deref().is_none_or(|name| is_name(event, name))
    }
}

/// Returns whether a person who says this name may mean the object of an event.
fn is_name(event: &EventView, name: &str) -> bool {
    let short = event.name.split(" (").next().unwrap_or_default();
    let is_beginning = |rest: &str| rest.is_empty() || rest.starts_with('/');
    let is_display_name = event.name == name || short.strip_prefix(name).is_some_and(is_beginning);
    let is_id = |id: &String| {
        name.len() >= ID_MIN && is_of_id(name) && is_of_id(id) && id.starts_with(name)
    };
    !name.is_empty()
        && (is_display_name
            || [&event.sandbox, &event.task].into_iter().flatten().any(is_id)
            // Also the beginning of the id of an allocation or a pod.
            || event.names.values().any(|value| value == name || is_id(value)))
}

/// Returns whether a text has only characters of ids.
fn is_of_id(text: &str) -> bool {
    text.bytes()
        .all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(owner: &str, name: &str, names: &[(&str, &str)]) -> EventView {
        let names = names
            .iter()
            .map(|(label, value)| ((*label).to_owned(), (*value).to_owned()));
        EventView {
            at: "2026-11-29T03:12:04.551Z".to_owned(),
            owner: owner.to_owned(),
            name: name.to_owned(),
            names: names.collect(),
            sandbox: Some("0123abcd".repeat(8)),
            task: Some("fedc4567".repeat(8)),
            ..EventView::default()
        }
    }

    #[test]
    fn object_is_meant_by_its_names_and_by_the_beginning_of_an_id() {
        let of_pod = [
            ("namespace", "shop"),
            ("pod", "web-1"),
            ("container", "app"),
        ];
        let pod = event("kubernetes", "shop/web-1/app", &of_pod);
        let alloc = "a5af733a-1111-2222-3333-444444444444";
        let of_job = [("nomad_job", "cache"), ("nomad_alloc", alloc)];
        let job = event("nomad", "cache/db/redis (a5af733a)", &of_job);
        for (event, names, others) in [
            (
                &pod,
                &[
                    "shop/web-1/app",
                    "shop/web-1",
                    "shop",
                    "web-1",
                    "app",
                    "0123",
                    "fedc4567f",
                ][..],
                &["web", "shop/web", "shop/web-1/", "012", "4567", "", "eb-1"][..],
            ),
            (
                &job,
                &[
                    "cache/db/redis (a5af733a)",
                    "cache/db/redis",
                    "cache/db",
                    "cache",
                    "a5af733a",
                    alloc,
                ][..],
                &["redis (", "db", "cache/d", "733a", "a5a"][..],
            ),
        ] {
            for name in names {
                assert!(is_name(event, name), "{name:?}");
            }
            for name in others {
                assert!(!is_name(event, name), "{name:?}");
            }
        }
    }

    #[test]
    fn beginning_of_a_name_that_looks_like_an_id_is_none() {
        let facade = event("nomad", "facade/web", &[("nomad_job", "facade-web")]);
        assert!(!is_name(&facade, "face") && !is_name(&facade, "faca"));
        assert!(is_name(&facade, "facade"));
    }

    #[test]
    fn time_and_owner_select_and_events_of_the_node_are_always_wanted() {
        let at = |text: &str| Some(text.parse::<Timestamp>().unwrap());
        let pod = event("kubernetes", "shop/web-1", &[]);
        let node = event(NODE_OWNER, "", &[]);
        let filter = EventFilter {
            name: Some("shop".to_owned()),
            owner: Some(Owner::Kubernetes),
            since: at("2026-11-29T03:12:04Z"),
            until: at("2026-11-29T03:12:05Z"),
        };
        assert!(filter.matches(&pod) && filter.matches(&node));
        let other = EventFilter {
            owner: Some(Owner::Nomad),
            ..filter.clone()
        };
        assert!(!other.matches(&pod) && other.matches(&node));
        let later = EventFilter {
            since: filter.until,
            until: None,
            ..filter.clone()
        };
        let earlier = EventFilter {
            since: None,
            until: filter.since,
            ..filter
        };
        for filter in [later, earlier] {
            assert!(!filter.matches(&pod) && !filter.matches(&node));
        }
        let timeless = EventView {
            at: "soon".to_owned(),
            ..pod
        };
        assert!(EventFilter::default().matches(&timeless) && !filter_since().matches(&timeless));
    }

    fn filter_since() -> EventFilter {
        EventFilter {
            since: Some(Timestamp::UNIX_EPOCH),
            ..EventFilter::default()
        }
    }
}
