//! Holds the thread that writes at a step, so that tests can do something else meanwhile.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use parking_lot::Mutex;
use switchyard_steps::Step;
use tokio::sync::oneshot;

use super::Store;

/// The steps at which a test holds the next thread. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct HeldSteps {
    steps: Arc<Mutex<HashMap<Step, Gate>>>,
}

/// Where a thread tells that it is there, and waits.
#[derive(Debug)]
struct Gate {
    reached: oneshot::Sender<()>,
    released: Receiver<()>,
}

/// Holds the thread that reaches a step, until it is dropped.
#[derive(Debug)]
pub(crate) struct HeldStep {
    reached: oneshot::Receiver<()>,
    _release: Sender<()>,
}

impl HeldSteps {
    /// A step is reached.
    pub(super) fn pass(&self, step: Step) {
        let held = self.steps.lock().remove(&step);
        if let Some(Gate { reached, released }) = held {
            reached.send(()).expect("a test waits for it");
            // It ends with its sender.
            let _ = released.recv();
        }
    }
}

impl HeldStep {
    /// Waits until it is reached.
    pub(crate) async fn reached(&mut self) {
        (&mut self.reached).await.expect("it is held");
    }
}

impl Store {
    /// Holds the thread that reaches a step next.
    pub(crate) fn hold(&self, step: Step) -> HeldStep {
        let (told, reached) = oneshot::channel();
        let (release, released) = channel();
        self.held.steps.lock().insert(step, Gate { reached: told, released });
        HeldStep { reached, _release: release }
    }
}
