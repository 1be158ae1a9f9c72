//! The events that are kept: the latest ones, bounded in number and size.

use std::collections::VecDeque;

use switchyard_operator_api::{EventView, ExitView};

/// Maximum number of events that are kept.
const EVENTS_MAX: usize = 5_000;

/// Maximum size of the texts of all kept events, in bytes.
const BYTES_MAX: usize = 2 << 20;

/// Size of an event without its texts, in bytes; an exit counts as if it were a part of it.
const EVENT_BYTES: usize = size_of::<EventView>();
const EXIT_BYTES: usize = size_of::<ExitView>();

/// The kept events, numbered in order from 1.
#[derive(Debug, Default)]
pub(super) struct Ring {
    events: VecDeque<EventView>,
    bytes: usize,
    latest: u64,
    /// The events that could not be recorded: for each interruption the last number, and how many there were.
    gaps: VecDeque<(u64, u64)>,
    /// The number of the last event that was dropped to make room.
    dropped: u64,
}

impl Ring {
    /// Adds an event and returns its number.
    pub(super) fn push(&mut self, event: EventView) -> u64 {
        self.latest += 1;
        let event = EventView {
            number: self.latest,
            ..event
        };
        self.bytes += size(&event);
        self.events.push_back(event);
        while self.events.len() > EVENTS_MAX || self.bytes > BYTES_MAX {
            let Some(oldest) = self.events.pop_front() else {
                break;
            };
            self.bytes -= size(&oldest);
            self.dropped = oldest.number;
            // The numbers of such a gap are counted as dropped from now on.
            while self
                .gaps
                .front()
                .is_some_and(|(last, _)| *last <= oldest.number)
            {
                self.gaps.pop_front();
            }
        }
        self.latest
    }

    /// Notes that this many events happened after the latest one and are not known; they have numbers too.
    /// Returns the last of these.
    pub(super) fn miss(&mut self, missed: u64) -> u64 {
        self.latest += missed;
        self.gaps.push_back((self.latest, missed));
        if self.gaps.len() > EVENTS_MAX {
            self.gaps.pop_front();
        }
        self.latest
    }

    /// At most `most` events after the one with this number, of one owner if one is named, and the number to
    /// continue with.
    pub(super) fn page(
        &self,
        after: u64,
        most: usize,
        owner: Option<&str>,
    ) -> (Vec<EventView>, u64) {
        let begin = self.events.partition_point(|event| event.number <= after);
        let mut events = Vec::new();
        let mut next = self.latest.max(after);
        for event in self.events.range(begin..) {
            if owner.is_some_and(|owner| owner != event.owner) {
                continue;
            }
            if events.len() == most {
                next = events.last().map_or(after, |last: &EventView| last.number);
                break;
            }
            events.push(event.clone());
        }
        (events, next)
    }

    /// At most `most` of the latest events that are wanted, the newest first.
    pub(super) fn latest(
        &self,
        most: usize,
        is_wanted: impl Fn(&EventView) -> bool,
    ) -> Vec<EventView> {
        self.events
            .iter()
            .rev()
            .filter(|event| is_wanted(event))
            .take(most)
            .cloned()
            .collect()
    }

    /// Returns the number of events after the one with this number that are no longer kept.
    pub(super) fn missing_after(&self, after: u64) -> u64 {
        let unknown: u64 = self
            .gaps
            .iter()
            .map(|(last, count)| (*count).min(last.saturating_sub(after)))
            .sum();
        self.dropped.saturating_sub(after) + unknown
    }
}

fn size(event: &EventView) -> usize {
    let EventView {
        number: _,
        at,
        owner,
        event,
        sandbox,
        task,
        name,
        detail,
        names: _,
        exit,
    } = event;
    let ids = [sandbox, task]
        .into_iter()
        .flatten()
        .map(String::len)
        .sum::<usize>();
    let exit = exit.as_deref().map_or(0, |_| EXIT_BYTES);
    EVENT_BYTES + at.len() + owner.len() + event.len() + name.len() + detail.len() + ids + exit
}
