//! Objects that something is wrong with, with the names that people give them.

use switchyard_core::backend::Trouble;
use switchyard_core::gateway::UnendedTask;
use switchyard_core::id::Owner;
use switchyard_logkeeper::protocol::Stats;
use switchyard_operator_api::TroubleView;

use super::Node;

/// The most objects of a trouble that are named.
const SHOWN: usize = 20;

impl Node {
    /// The first objects of each kind in a condition that the daemon cannot end; also tasks that cannot end, with what holds
    /// them up, and containers whose output waits for their logs. Takes two seconds at most. It may be dropped at any time.
    pub async fn named_troubles(&self) -> Vec<TroubleView> {
        let slow_logs = self.slow_logs().await;
        let troubles = self.status().troubles;
        let named = |kind, object: &String| match kind {
            Trouble::SilentShim | Trouble::UnrecordedExit => self.with_name(object),
            Trouble::LeftCgroup | Trouble::TreeSetAside | Trouble::DamagedImage => object.clone(),
        };
        let of_backend = troubles.iter().map(|(kind, objects)| {
            let shown = objects.iter().take(SHOWN);
            TroubleView {
                kind: kind.as_str().to_owned(),
                count: objects.len(),
                objects: shown.map(|object| named(*kind, object)).collect(),
            }
        });
        of_backend
            .chain(self.unended_tasks())
            .chain(slow_logs)
            .collect()
    }

    fn unended_tasks(&self) -> Option<TroubleView> {
        let unended = self.gateway().tasks().unended();
        let named = |task: &UnendedTask| {
            let name = self.with_name(&task.id.to_string());
            match &task.why {
                Some(why) => format!("{name}: {why}"),
                None => name,
            }
        };
        (!unended.is_empty()).then(|| TroubleView {
            kind: "unended_task".to_owned(),
            count: unended.len(),
            objects: unended.iter().take(SHOWN).map(named).collect(),
        })
    }

    /// The first containers whose output fills their pipes, because their logs are written more slowly; `None` if there are
    /// none, or the logkeeper does not answer soon.
    async fn slow_logs(&self) -> Option<TroubleView> {
        let logs = self.log_figures().await?;
        let counts = logs.file_systems.iter().map(|known| known.full_pipes);
        let count: u64 = counts.sum();
        let slow = logs.file_systems.iter().flat_map(|known| {
            let ids = known.full_pipe_ids.iter();
            ids.map(move |id| (id, &known.mount_point))
        });
        let named = |(id, mount): (&String, &String)| {
            format!("{}: its log is on {mount}", self.with_name(id))
        };
        (count > 0).then(|| TroubleView {
            kind: "full_pipe".to_owned(),
            count: usize::try_from(count).unwrap_or(usize::MAX),
            objects: slow.take(SHOWN).map(named).collect(),
        })
    }

    /// An id, with the names of its task or sandbox if there is one.
    fn with_name(&self, id: &str) -> String {
        let scopes = Owner::ALL.map(|owner| self.gateway().scope(owner));
        let task = scopes.iter().find_map(|scope| {
            let task = scope.tasks().find(id).ok()?;
            let sandbox = scope.sandboxes().by_id(task.sandbox).ok()?;
            Some(self.sources.owners.names(&sandbox, Some(&task)).to_string())
        });
        match task.or_else(|| self.display_name(id)) {
            Some(name) => format!("{id} ({name})"),
            None => id.to_owned(),
        }
    }
}

/// The mount point of the log of a container, if its output fills its pipe.
pub(super) fn slow_log(logs: &Stats, id: &str) -> Option<String> {
    let holds_up = |ids: &[String]| ids.iter().any(|held_up| held_up == id);
    let mut slow = logs.file_systems.iter();
    slow.find(|known| holds_up(&known.full_pipe_ids))
        .map(|known| known.mount_point.clone())
}

#[cfg(test)]
mod tests {
    use switchyard_logkeeper::protocol::LogFileSystem;

    use super::*;

    #[test]
    fn log_is_slow_on_the_file_system_that_names_the_container() {
        let on = |mount_point: &str, ids: &[&str]| LogFileSystem {
            mount_point: mount_point.to_owned(),
            full_pipe_ids: ids.iter().map(|id| (*id).to_owned()).collect(),
            ..LogFileSystem::default()
        };
        let logs = Stats {
            file_systems: vec![on("/", &["a"]), on("/logs", &["b", "c"])],
            ..Stats::default()
        };
        assert_eq!(slow_log(&logs, "c").as_deref(), Some("/logs"));
        assert_eq!(slow_log(&logs, "d"), None);
        assert_eq!(slow_log(&Stats::default(), "a"), None);
    }
}
