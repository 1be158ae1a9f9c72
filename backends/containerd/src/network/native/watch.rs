//! Keeps the tables of the gateway's bridges as they should be, although other programs flush the ruleset of the node, as
//! `nft flush ruleset` and `firewall-cmd --reload` do; accepts what they forward where a policy of iptables drops it; and removes connections
//! behind the answer to a detachment.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use switchyard_core::backoff::Backoff;
use switchyard_core::logged_texts::LoggedTexts;
use switchyard_core::{Error, Result};
use switchyard_linux::report;
use switchyard_network::driver::{BridgeTables, Restoration};
use switchyard_network::iptables::{FilterChange, IptablesError};
use switchyard_network::nft::{NftFamily, NftMonitor, Repair};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::NativeBridges;
use crate::base::error::from_network;
use crate::base::fs::blocking;
use crate::base::layout::Layout;
use crate::base::polled::polled;

/// The interval of looks at the tables while nobody is noticed to change them: notifications may be lost.
const LOOK_INTERVAL: Duration = Duration::from_secs(60);
/// The pause between a change by others and the look at it, in which they finish what they are at. A flush is mended within two seconds.
const SETTLE: Duration = Duration::from_millis(300);
/// The first and the longest pause after a look that failed.
const RETRY: (Duration, Duration) = (Duration::from_millis(500), LOOK_INTERVAL);
/// The most texts that are logged while others change the tables again and again.
const TEXTS_MAX: usize = 16;

/// A monitor, and a second descriptor of its socket for which the runtime waits.
#[derive(Debug)]
struct PolledMonitor {
    monitor: NftMonitor,
    descriptor: AsyncFd<OwnedFd>,
}

/// The result of a look at the tables.
struct TableLook {
    /// Texts for the log about what was mended, also if something could not be.
    mended: Vec<String>,
    /// Reason why not everything could be.
    failure: Option<Error>,
    /// The port of the tables' socket, by which our own changes are known. Also after a failure: otherwise each attachment would be taken for a
    /// change by others, and cause a look.
    own: Option<u32>,
}

// === impl TableLook ===

impl TableLook {
    fn of(restoration: Restoration, own: Option<u32>) -> Self {
        let Restoration { repairs, failure } = restoration;
        let repairs = repairs.into_iter();
        Self {
            mended: repairs
                .filter_map(|(family, repair)| mended_text(family, repair))
                .collect(),
            failure: failure.map(from_network),
            own,
        }
    }
}

// === impl PolledMonitor ===

impl PolledMonitor {
    fn new(monitor: NftMonitor) -> io::Result<Self> {
        let descriptor = polled(monitor.as_fd().try_clone_to_owned()?, Interest::READABLE)?;
        Ok(Self {
            monitor,
            descriptor,
        })
    }

    /// Waits until others than the socket with the port `own` have changed one of the tables. Cancel-safe.
    async fn changed(&mut self, own: Option<u32>) -> Result<()> {
        loop {
            let mut ready = self.descriptor.readable().await.map_err(cannot_wait)?;
            let notice = self.monitor.read(own.as_slice()).map_err(from_network)?;
            if !notice.more {
                ready.clear_ready();
            }
            if !notice.families.is_empty() {
                return Ok(());
            }
        }
    }
}

impl NativeBridges {
    /// Restores the tables whenever others change them, and removes connections of lost ports, until `stop`. Changes nothing without a need.
    pub(crate) async fn watch(self: Arc<Self>, layout: Layout, stop: CancellationToken) {
        tokio::select! {
            () = self.keep_tables(&layout) => {}
            () = self.keep_filters() => {}
            () = self.forget_past_flows() => {}
            () = stop.cancelled() => {}
        }
    }

    /// Removes the connections that go on to where a port led before: first those that predecessors have left, of the bridges that are on record
    /// by then (one whose journal is read later has its turn at its first attachment), and then once for several attachments and detachments, behind the answers to them. Never ends. Cancel-safe.
    async fn forget_past_flows(&self) {
        self.in_use.cancelled().await;
        let others: Vec<_> = self.others.lock().values().cloned().collect();
        for driver in others.into_iter().chain([Arc::clone(&self.own)]) {
            log_flows_stay(self.call(move |_| driver.forget_abandoned_flows()).await);
        }
        loop {
            self.past_flows.notified().await;
            log_flows_stay(self.call(BridgeTables::forget_past_flows).await);
        }
    }

    /// Never ends. Cancel-safe: a look that has begun is completed on its thread.
    async fn keep_tables(self: &Arc<Self>, layout: &Layout) {
        self.in_use.cancelled().await;
        let mut logged = LoggedTexts::at_most(TEXTS_MAX);
        let mut backoff = Backoff::new(RETRY.0, RETRY.1);
        let mut monitor = None;
        loop {
            // Opened before the look, so that it reports what others change after it.
            let opened = self.open(&mut monitor).await;
            if !self.knows_all.load(Ordering::Relaxed) {
                self.take_over(layout, false).await;
            }
            let TableLook {
                mended,
                failure,
                own,
            } = self.look().await;
            let errors = [opened.as_ref().err(), failure.as_ref()];
            for error in errors.into_iter().flatten() {
                log_once(&mut logged, error);
            }
            let works = opened.is_ok() && failure.is_none();
            for text in mended.iter().filter(|text| logged.is_new(text)) {
                tracing::warn!(
                    what = text,
                    "another program has changed the rules of the gateway's bridges: they are restored"
                );
            }
            let pause = if works {
                backoff.reset();
                LOOK_INTERVAL
            } else {
                backoff.pause()
            };
            let noticed = async {
                tokio::select! {
                    changed = changed(&mut monitor, own) => changed,
                    () = self.fell_behind.notified() => Ok(()),
                }
            };
            match timeout(pause, noticed).await {
                Ok(Ok(())) => sleep(SETTLE).await,
                // Another one is opened.
                Ok(Err(error)) => {
                    log_once(&mut logged, &error);
                    monitor = None;
                    backoff.wait().await;
                }
                // Nobody has changed anything for so long: what comes now is another trouble.
                Err(_) if works && mended.is_empty() => logged.clear(),
                Err(_) => {}
            }
        }
    }

    /// Sees to it that no policy of iptables drops what the bridges forward. Beside the looks at the tables, which do not wait for programs of
    /// others that have the lock of a filter. Never ends. Cancel-safe: a look that has begun is completed on its thread.
    async fn keep_filters(&self) {
        self.in_use.cancelled().await;
        let mut logged = LoggedTexts::at_most(TEXTS_MAX);
        let mut backoff = Backoff::new(RETRY.0, RETRY.1);
        loop {
            let tables = Arc::clone(&self.tables);
            let looked = blocking(move || Ok(tables.accept_forwarded())).await;
            let works = match &looked {
                Ok(filters) => {
                    log_filters(&mut logged, filters);
                    filters.iter().all(std::result::Result::is_ok)
                }
                Err(error) => {
                    log_once(&mut logged, error);
                    false
                }
            };
            if looked.is_ok_and(|filters| filters.is_empty()) {
                logged.clear();
            }
            let pause = if works {
                backoff.reset();
                LOOK_INTERVAL
            } else {
                backoff.pause()
            };
            // That it is time says nothing else than a notice.
            let _ = timeout(pause, self.bridges_changed.notified()).await;
        }
    }

    /// Opens the monitor, if there is none.
    async fn open(&self, monitor: &mut Option<PolledMonitor>) -> Result<()> {
        if monitor.is_some() {
            return Ok(());
        }
        let table = self.tables.name().clone();
        let opened = blocking(move || NftMonitor::open(table).map_err(from_network)).await?;
        *monitor = Some(PolledMonitor::new(opened).map_err(cannot_wait)?);
        Ok(())
    }

    /// Looks at the tables, and mends them.
    async fn look(&self) -> TableLook {
        let looked = self
            .call(|tables| TableLook::of(tables.restore_each(), tables.socket_port()))
            .await;
        // Also after an error, which may be that of one table while another one was mended. Where no connections wait to be removed, it does
        // without the kernel.
        self.past_flows.notify_one();
        looked.unwrap_or_else(|error| TableLook {
            mended: Vec::new(),
            failure: Some(error),
            own: None,
        })
    }
}

/// Waits until others have changed one of the tables; for ever without a monitor. Cancel-safe.
async fn changed(monitor: &mut Option<PolledMonitor>, own: Option<u32>) -> Result<()> {
    match monitor {
        Some(monitor) => monitor.changed(own).await,
        None => std::future::pending().await,
    }
}

fn log_flows_stay(removed: Result<()>) {
    if let Err(error) = removed {
        tracing::debug!(
            error = error.report(),
            "connections to ports of former containers stay"
        );
    }
}

/// The error of a descriptor of the monitor.
fn cannot_wait(fault: io::Error) -> Error {
    Error::internal("wait for changes of the ruleset").with_source(fault)
}

fn log_once(logged: &mut LoggedTexts, error: &Error) {
    let report = error.report();
    if logged.is_new(&report) {
        tracing::warn!(
            error = report,
            "cannot keep the rules of the gateway's bridges as they should be: trying again"
        );
    }
}

/// Logs what was changed in filters of iptables, and what failed. Changes are those of a policy that others have set, or of a need.
fn log_filters(
    logged: &mut LoggedTexts,
    filters: &[std::result::Result<FilterChange, IptablesError>],
) {
    for filter in filters {
        match filter {
            Ok(change) => {
                let what = change.to_string();
                if logged.is_new(&what) {
                    tracing::info!(
                        what,
                        "rules for the gateway's bridges at the end of FORWARD of iptables were added or removed, as its policy asks for it"
                    );
                }
            }
            Err(error) => {
                let report = report(error);
                if logged.is_new(&report) {
                    tracing::warn!(
                        error = report,
                        "cannot look whether iptables drops what the gateway's bridges forward, or accept it: trying again"
                    );
                }
            }
        }
    }
}

/// Describes what a repair has changed, for people; `None` for nothing.
fn mended_text(family: NftFamily, repair: Repair) -> Option<String> {
    let family = family.name();
    match repair {
        Repair::Nothing => None,
        Repair::Elements { added, removed, .. } => Some(format!(
            "family {family}: {added} elements were added, {removed} removed"
        )),
        Repair::Whole => Some(format!(
            "family {family}: the table was missing, or had other sets, chains or rules"
        )),
    }
}

#[cfg(test)]
mod tests;
