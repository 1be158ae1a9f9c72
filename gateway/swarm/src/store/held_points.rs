//! Holds the thread that writes at a crash point, so that tests can do something else meanwhile.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use parking_lot::Mutex;
use switchyard_crash_points::CrashPoint;
use tokio::sync::oneshot;

use super::Store;

/// The crash points at which a test holds the next thread. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct HeldPoints {
    points: Arc<Mutex<HashMap<CrashPoint, Gate>>>,
}

/// A point at which a thread reports its arrival, and waits.
#[derive(Debug)]
struct Gate {
    reached: oneshot::Sender<()>,
    released: Receiver<()>,
}

/// Holds the thread that reaches a crash point, until it is dropped.
#[derive(Debug)]
pub(crate) struct HeldPoint {
    reached: oneshot::Receiver<()>,
    _release: Sender<()>,
}

impl HeldPoints {
    /// A crash point is reached.
    pub(super) fn pass(&self, point: CrashPoint) {
        let held = self.points.lock().remove(&point);
        if let Some(Gate { reached, released }) = held {
            reached.send(()).expect("a test waits for it");
            // It ends with its sender.
            let _ = released.recv();
        }
    }
}

impl HeldPoint {
    /// Waits until it is reached.
    pub(crate) async fn reached(&mut self) {
        (&mut self.reached).await.expect("it is held");
    }
}

impl Store {
    /// Holds the thread that reaches a crash point next.
    pub(crate) fn hold(&self, point: CrashPoint) -> HeldPoint {
        let (told, reached) = oneshot::channel();
        let (release, released) = channel();
        self.held.points.lock().insert(
            point,
            Gate {
                reached: told,
                released,
            },
        );
        HeldPoint {
            reached,
            _release: release,
        }
    }
}
