//! The fake backend fulfils the contract of backends.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed")]

use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use switchyard_contract::{Fixture, contract_tests};
use switchyard_core::backend::Backend;
use switchyard_fake::{BUSYBOX, Fake};

struct FakeFixture {
    fake: Mutex<Fake>,
}

impl FakeFixture {
    fn new() -> Self {
        Self {
            fake: Mutex::new(Fake::with_busybox()),
        }
    }
}

#[async_trait]
impl Fixture for FakeFixture {
    fn backend(&self) -> Arc<dyn Backend> {
        Arc::new(self.fake.lock().clone())
    }

    fn image(&self) -> String {
        BUSYBOX.into()
    }

    async fn reopen(&self) -> Arc<dyn Backend> {
        let mut fake = self.fake.lock();
        *fake = fake.reopen();
        Arc::new(fake.clone())
    }

    async fn remaining_objects(&self) -> Vec<String> {
        let fake = self.fake.lock();
        let mut left = fake.remaining_objects();
        left.extend(fake.breaches());
        left
    }
}

contract_tests!(|| FakeFixture::new());
