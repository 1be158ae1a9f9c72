//! `switchyard history`: the events on record about a sandbox or task, or about all, with those of the node itself.

use std::io;

use clap::Args;
use http::Method;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use switchyard_operator_api::HistoryPage;

use super::daemon::{DaemonError, Target, parse, send};
use super::events::shown;
use super::local_time::{self, TimeArg};
use super::watch::OWNERS;
use crate::output::{Format, announce, print_error};

#[derive(Debug, Args)]
pub(super) struct HistoryArgs {
    #[command(flatten)]
    target: Target,
    /// Only what is not older: a time of the day such as 03:00, the last one, or a day such as 2026-11-26, both of the
    /// node's time zone; a time such as 2026-11-26T10:00:00Z; or how long ago, such as 10m.
    #[arg(long, value_name = "TIME", value_parser = local_time::parse)]
    since: Option<TimeArg>,
    /// Only what is older; a time of the day is the first one after --since.
    #[arg(long, value_name = "TIME", value_parser = local_time::parse)]
    until: Option<TimeArg>,
    /// Only what is about one owner, and about the node: kubernetes, nomad, swarm or host.
    #[arg(long, value_name = "OWNER", value_parser = OWNERS)]
    owner: Option<String>,
    /// A name as `switchyard ps` shows it, or its beginning up to a slash, a pod, a job, a service, or the beginning of an
    /// id. Without it, everything.
    name: Option<String>,
}

/// Shows the events on record, page by page.
pub(super) async fn history(args: &HistoryArgs) -> Result<(), DaemonError> {
    let zone = local_time::zone();
    let now = Timestamp::now();
    let since = args.since.map(|time| time.last_before(now, &zone));
    let until = args.until.map(|time| match since {
        Some(since) => time.first_after(since, now, &zone),
        None => time.last_before(now, &zone),
    });
    if args.target.output == Format::Text {
        let about = args.name.as_deref().unwrap_or("all objects");
        print_error(format!(
            "switchyard: events of {about} and of the node {}\n",
            range_text(since, until, &zone)
        ))?;
    }
    let mut unreadable = 0;
    let mut from: Option<String> = None;
    let mut is_first = true;
    loop {
        let path = path_of(args, since, until, from.as_deref());
        let body = send(&args.target.socket, Method::GET, &path).await?;
        let page: HistoryPage = parse(&path, &body)?;
        unreadable += page.unreadable;
        let has_headings = is_first && !page.events.is_empty();
        match announce(&shown(&page.events, args.target.output, has_headings)?) {
            Ok(()) => {}
            // As in `switchyard history | head -1`.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        is_first &= page.events.is_empty();
        from = page.next;
        if from.is_none() {
            if is_first {
                print_error("switchyard: no event on record is asked for by this\n")?;
            }
            return report_gaps(unreadable, page.lost);
        }
    }
}

/// Reports what is missing.
fn report_gaps(unreadable: u64, lost: u64) -> Result<(), DaemonError> {
    if unreadable > 0 {
        print_error(format!(
            "switchyard: {unreadable} records cannot be read, as what a full disk or a kill cuts off\n"
        ))?;
    }
    if lost > 0 {
        print_error(format!(
            "switchyard: {lost} events since the start of the daemon could not be recorded: its log says why\n"
        ))?;
    }
    Ok(())
}

fn path_of(
    args: &HistoryArgs,
    since: Option<Timestamp>,
    until: Option<Timestamp>,
    from: Option<&str>,
) -> String {
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    let since = since.map(|since| since.to_string());
    let until = until.map(|until| until.to_string());
    for (word, value) in [
        ("name", args.name.as_deref()),
        ("owner", args.owner.as_deref()),
        ("since", since.as_deref()),
        ("until", until.as_deref()),
        ("from", from),
    ] {
        if let Some(value) = value {
            query.append_pair(word, value);
        }
    }
    format!("/v1/history?{}", query.finish())
}

/// The range in words: in the node's time zone, and in UTC, in which events are shown. Pure.
fn range_text(since: Option<Timestamp>, until: Option<Timestamp>, zone: &TimeZone) -> String {
    let both = |time: Timestamp| {
        let local = time.to_zoned(zone.clone());
        format!("{} ({time:.0})", local.strftime("%Y-%m-%d %H:%M:%S %z"))
    };
    let begin = since.map_or_else(
        || "as far back as there are any".to_owned(),
        |since| format!("since {}", both(since)),
    );
    let end = until.map_or_else(String::new, |until| format!(", until {}", both(until)));
    format!("{begin}{end}; times are UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_has_the_time_of_the_node_and_utc() {
        let zone = TimeZone::posix("CET-1").unwrap();
        let since = "2026-11-29T02:00:00Z".parse().ok();
        let until = "2026-11-29T03:30:00Z".parse().ok();
        assert_eq!(
            range_text(since, None, &zone),
            "since 2026-11-29 03:00:00 +0100 (2026-11-29T02:00:00Z); times are UTC"
        );
        let both = range_text(since, until, &zone);
        assert!(
            both.contains(", until 2026-11-29 04:30:00 +0100 ("),
            "{both}"
        );
        let all = range_text(None, None, &zone);
        assert_eq!(all, "as far back as there are any; times are UTC");
    }
}
