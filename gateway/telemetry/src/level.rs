//! The level of the log: the configured one, or a temporary one for a while.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use switchyard_operator_api::LevelView;
use switchyard_operator_api::text::rfc3339;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tracing_subscriber::filter::Targets;

use crate::filter::{LevelError, parse_level};

/// The handle to the level of this process's log. Clones share it.
#[derive(Clone)]
pub struct LogLevel {
    shared: Arc<LevelState>,
}

struct LevelState {
    apply: Box<dyn Fn(Targets) + Send + Sync>,
    levels: Mutex<Levels>,
    /// Notified when the temporary level has changed.
    changed: Notify,
}

struct Levels {
    configured: String,
    temporary: Option<TemporaryLevel>,
}

struct TemporaryLevel {
    level: String,
    until: Instant,
    /// The same for display; the system's clock may be set meanwhile.
    until_time: SystemTime,
}

impl fmt::Debug for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LogLevel").field(&self.view()).finish()
    }
}

impl LogLevel {
    /// A level that `apply` puts in force; `level` is in force already.
    #[must_use]
    pub fn new(level: &str, apply: impl Fn(Targets) + Send + Sync + 'static) -> Self {
        let levels = Levels {
            configured: level.to_owned(),
            temporary: None,
        };
        let shared = LevelState {
            apply: Box::new(apply),
            levels: Mutex::new(levels),
            changed: Notify::new(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Replaces the configured level. A temporary level stays until its end.
    ///
    /// # Errors
    /// `level` is neither a level nor a filter; nothing has changed.
    pub fn configure(&self, level: &str) -> Result<(), LevelError> {
        let filter = parse_level(level)?;
        let mut levels = self.shared.levels.lock();
        if levels.configured != level {
            level.clone_into(&mut levels.configured);
            if levels.temporary.is_none() {
                (self.shared.apply)(filter);
            }
        }
        Ok(())
    }

    /// Sets a level that [`LogLevel::follow`] replaces by the configured one after this time.
    ///
    /// # Errors
    /// `level` is neither a level nor a filter; nothing has changed.
    pub fn set_temporary(&self, level: &str, time: Duration) -> Result<(), LevelError> {
        let filter = parse_level(level)?;
        let temporary = TemporaryLevel {
            level: level.to_owned(),
            until: Instant::now() + time,
            until_time: SystemTime::now() + time,
        };
        let mut levels = self.shared.levels.lock();
        levels.temporary = Some(temporary);
        (self.shared.apply)(filter);
        drop(levels);
        self.shared.changed.notify_one();
        Ok(())
    }

    /// Puts the configured level in force at once.
    pub fn reset(&self) {
        let mut levels = self.shared.levels.lock();
        if levels.temporary.take().is_some() {
            self.apply_configured(&levels);
        }
        drop(levels);
        self.shared.changed.notify_one();
    }

    /// The level in force.
    #[must_use]
    pub fn view(&self) -> LevelView {
        let levels = self.shared.levels.lock();
        let configured = levels.configured.clone();
        match &levels.temporary {
            Some(temporary) => LevelView {
                level: temporary.level.clone(),
                configured,
                until: Some(rfc3339(temporary.until_time)),
            },
            None => LevelView {
                level: configured.clone(),
                configured,
                until: None,
            },
        }
    }

    /// Ends temporary levels when their time is over, for ever. Cancel-safe.
    pub async fn follow(self) {
        loop {
            let until = self
                .shared
                .levels
                .lock()
                .temporary
                .as_ref()
                .map(|temporary| temporary.until);
            let over = async {
                match until {
                    Some(until) => sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.shared.changed.notified() => {}
                () = over => self.end_expired(),
            }
        }
    }

    /// Ends the temporary level if its time is over; it may have been set again meanwhile.
    fn end_expired(&self) {
        let mut levels = self.shared.levels.lock();
        let now = Instant::now();
        if let Some(ended) = levels.temporary.take_if(|temporary| temporary.until <= now) {
            self.apply_configured(&levels);
            let configured = levels.configured.clone();
            drop(levels);
            tracing::info!(
                level = configured,
                temporary = ended.level,
                "the temporary log level has ended"
            );
        }
    }

    fn apply_configured(&self, levels: &Levels) {
        match parse_level(&levels.configured) {
            Ok(filter) => (self.shared.apply)(filter),
            // It was parsed before it was stored.
            Err(error) => tracing::error!(%error, "the configured log level cannot be applied"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A level, and the filters that were applied.
    fn level() -> (LogLevel, Arc<Mutex<Vec<String>>>) {
        let applied = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&applied);
        let level = LogLevel::new("info", move |filter| sink.lock().push(filter.to_string()));
        (level, applied)
    }

    #[tokio::test(start_paused = true)]
    async fn a_temporary_level_ends_by_itself_and_a_later_one_replaces_it() {
        let (level, applied) = level();
        let following = tokio::spawn(level.clone().follow());
        level
            .set_temporary("debug", Duration::from_secs(60))
            .unwrap();
        tokio::time::sleep(Duration::from_secs(30)).await;
        level
            .set_temporary("trace", Duration::from_secs(60))
            .unwrap();
        tokio::time::sleep(Duration::from_secs(59)).await;
        let view = level.view();
        assert_eq!(
            (&*view.level, &*view.configured, view.until.is_some()),
            ("trace", "info", true)
        );
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(
            level.view(),
            LevelView {
                level: "info".into(),
                configured: "info".into(),
                until: None
            }
        );
        assert_eq!(
            *applied.lock(),
            ["audit=info,debug", "audit=info,trace", "audit=info,info"]
        );
        following.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_reload_changes_the_level_that_a_temporary_one_falls_back_to() {
        let (level, applied) = level();
        let following = tokio::spawn(level.clone().follow());
        level
            .set_temporary("debug", Duration::from_secs(60))
            .unwrap();
        level.configure("warn").unwrap();
        assert_eq!(level.view().level, "debug");
        level.reset();
        assert_eq!(level.view().level, "warn");
        level.configure("warn").unwrap();
        level.configure("error").unwrap();
        tokio::time::sleep(Duration::from_secs(120)).await;
        assert_eq!(
            *applied.lock(),
            ["audit=info,debug", "audit=info,warn", "audit=info,error"]
        );
        following.abort();
    }

    #[test]
    fn a_wrong_level_changes_nothing() {
        let (level, applied) = level();
        assert!(
            level
                .set_temporary("switchyard=loud", Duration::from_secs(1))
                .is_err()
        );
        assert!(level.configure("a=b=c").is_err());
        let refused = level
            .set_temporary("info,dbug", Duration::from_secs(1))
            .unwrap_err();
        assert!(
            refused
                .to_string()
                .starts_with("\"dbug\" is no level: error, warn, info,"),
            "{refused}"
        );
        assert_eq!(level.view().level, "info");
        assert!(applied.lock().is_empty());
    }
}
