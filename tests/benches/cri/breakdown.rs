//! The parts of the time of our pods, as containerd and the daemon count it in their metrics.
//!
//! The CRI plugin calls containerd's core services inside of the process, so calls of these services over
//! gRPC are all ours, except for the few by which this program checks that a pod is gone: those are
//! subtracted.

use std::collections::BTreeMap;

use switchyard_tests::http;

use crate::failure::Failure;
use crate::test_bed::TestBed;

/// Calls of containerd that this program makes itself.
const BENCH_CALLS: [&str; 2] = ["containers.Containers/Get", "snapshots.Snapshots/Stat"];

/// The calls so far, by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scrape {
    /// CRI calls, as the daemon counts them.
    pub(crate) daemon: BTreeMap<String, CallTotals>,
    /// Calls of containerd, as containerd counts them.
    pub(crate) containerd: BTreeMap<String, CallTotals>,
    /// Runs of programs for our pods.
    pub(crate) our_programs: BTreeMap<String, CallTotals>,
    /// Runs of programs for the pods of the CRI plugin.
    pub(crate) their_programs: BTreeMap<String, CallTotals>,
}

/// The calls of one method.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CallTotals {
    /// Number of calls.
    pub(crate) count: f64,
    /// Their total duration in seconds.
    pub(crate) seconds: f64,
}

impl Scrape {
    /// Reads the metrics of both.
    pub(crate) fn take(stand: &TestBed) -> Result<Self, Failure> {
        let address = stand
            .containerd
            .metrics
            .ok_or("containerd was started without metrics")?;
        let containerd = http::get(address, "/v1/metrics")?.text();
        let (status, daemon) = stand.daemon.get("/metrics");
        if status != 200 {
            return Err(format!("/metrics of the daemon answers {status}").into());
        }
        let timed = stand.timed.as_ref().ok_or("the programs are not timed")?;
        let mut scrape = Self {
            our_programs: timed.ours.calls()?,
            their_programs: timed.theirs.calls()?,
            daemon: calls(&daemon, "switchyard_rpc_duration_seconds", |labels| {
                Some(labels.get("method")?.clone())
            }),
            containerd: calls(&containerd, "grpc_server_handling_seconds", |labels| {
                let service = labels
                    .get("grpc_service")?
                    .strip_prefix("containerd.services.")?;
                Some(format!(
                    "{}/{}",
                    service.replace(".v1.", "."),
                    labels.get("grpc_method")?
                ))
            }),
        };
        scrape
            .containerd
            .retain(|name, _| !BENCH_CALLS.contains(&name.as_str()));
        Ok(scrape)
    }

    /// Breaks down the time from RunPodSandbox to the answer of StartContainer, in seconds of one of `pods`:
    /// all of it first, then its parts. Concurrent work counts in both parts, so that our own part, which is
    /// the remainder, may be too small.
    pub(crate) fn pod_start(&self, pods: f64) -> Vec<(&'static str, f64)> {
        let all = ["/RunPodSandbox", "/CreateContainer", "/StartContainer"];
        let all = sum(&self.daemon, |name| {
            all.iter().any(|end| name.ends_with(end))
        }) / pods;
        let mut rows = vec![("pod up, as the daemon counts it", all)];
        rows.extend(self.work(pods));
        let rest: f64 = rows[1..].iter().map(|(_, seconds)| seconds).sum();
        rows.push(("our own: what is left", all - rest));
        rows
    }

    /// Breaks down the time of a StartTask in the same way.
    pub(crate) fn task_start(&self, tasks: f64) -> Vec<(&'static str, f64)> {
        let all = sum(&self.daemon, |name| name.ends_with("/StartTask")) / tasks;
        let mut rows = vec![("StartTask, as the daemon counts it", all)];
        rows.extend(self.work(tasks));
        let rest: f64 = rows[1..].iter().map(|(_, seconds)| seconds).sum();
        rows.push(("our own: what is left", all - rest));
        rows
    }

    /// Returns the share of a bare start in that.
    pub(crate) fn bare_start(&self, tasks: f64) -> Vec<(&'static str, f64)> {
        self.work(tasks)
    }

    /// The work of others in a start, in seconds of one of `count`.
    fn work(&self, count: f64) -> Vec<(&'static str, f64)> {
        let call = |names: &[&str]| sum(&self.containerd, |name| names.contains(&name)) / count;
        // bridge runs host-local, so that counts already.
        let cni = sum(&self.our_programs, |name| {
            name.ends_with(" ADD") && !name.starts_with("host-local")
        });
        let runtime = sum(&self.our_programs, |name| {
            name == "runc create" || name == "runc start"
        }) / count;
        let shim = call(&["tasks.Tasks/Create", "tasks.Tasks/Start"]) - runtime;
        let snapshot = call(&["snapshots.Snapshots/Prepare", "snapshots.Snapshots/Mounts"]);
        let records = call(&[
            "containers.Containers/Create",
            "containers.Containers/Update",
        ]);
        vec![
            ("CNI plugins", cni / count),
            ("runtime: runc create and start", runtime),
            ("shim: the rest of tasks/Create and Start", shim),
            ("snapshot", snapshot),
            ("records with the spec, until its removal", records),
        ]
    }

    /// Breaks down the time of an ExecSync, in seconds of one: all of it first, then its parts. The runtime's
    /// part is the mean over all commands, including those with streamed output: they are started alike.
    pub(crate) fn exec_sync(&self) -> Vec<(&'static str, f64)> {
        let mean =
            |calls: Option<&CallTotals>| calls.map_or(0.0, |calls| calls.seconds / calls.count);
        let all = mean(
            self.daemon
                .iter()
                .find(|(name, _)| name.ends_with("/ExecSync"))
                .map(|(_, calls)| calls),
        );
        let runtime = mean(self.our_programs.get("runc exec"));
        vec![
            ("ExecSync, as the daemon counts it", all),
            ("runtime: runc exec", runtime),
            ("shim, the command itself, and our own", all - runtime),
        ]
    }

    /// Returns the calls after `before`.
    pub(crate) fn since(mut self, before: &Self) -> Self {
        for (after, before) in [
            (&mut self.daemon, &before.daemon),
            (&mut self.containerd, &before.containerd),
            (&mut self.our_programs, &before.our_programs),
            (&mut self.their_programs, &before.their_programs),
        ] {
            for (name, calls) in after.iter_mut() {
                let then = before.get(name).copied().unwrap_or_default();
                calls.count -= then.count;
                calls.seconds -= then.seconds;
            }
            after.retain(|_, calls| calls.count > 0.5);
        }
        self
    }
}

/// The time of those calls that are wanted, in seconds.
fn sum(calls: &BTreeMap<String, CallTotals>, wanted: impl Fn(&str) -> bool) -> f64 {
    calls
        .iter()
        .filter(|(name, _)| wanted(name))
        .map(|(_, calls)| calls.seconds)
        .sum()
}

/// The sums and counts of a histogram in Prometheus' text form, by what `name` makes of their labels.
fn calls(
    text: &str,
    histogram: &str,
    name: impl Fn(&BTreeMap<String, String>) -> Option<String>,
) -> BTreeMap<String, CallTotals> {
    let mut found: BTreeMap<String, CallTotals> = BTreeMap::new();
    for line in text.lines() {
        let Some((kind, rest)) = line
            .strip_prefix(histogram)
            .and_then(|rest| rest.split_once('{'))
        else {
            continue;
        };
        let Some((labels, value)) = rest.rsplit_once("} ") else {
            continue;
        };
        let Ok(value) = value.trim().parse::<f64>() else {
            continue;
        };
        let labels: BTreeMap<String, String> = labels
            .split(',')
            .filter_map(|label| label.split_once('='))
            .map(|(key, value)| (key.to_owned(), value.trim_matches('"').to_owned()))
            .collect();
        let Some(name) = name(&labels) else { continue };
        match kind {
            "_sum" => found.entry(name).or_default().seconds += value,
            "_count" => found.entry(name).or_default().count += value,
            _ => {}
        }
    }
    found
}
