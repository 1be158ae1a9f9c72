//! The processor time that processes have used.

use std::fs;
use std::time::{Duration, Instant};

use crate::failure::Failure;

/// The length of the ticks that the kernel counts in, the same on every architecture that is compared.
const TICK: Duration = Duration::from_millis(10);

/// Returns the processor time that these processes take for so long, in per cent of a core.
pub(crate) async fn watch(pids: &[u32], time: Duration) -> Result<f64, Failure> {
    let before = spent(pids)?;
    let begin = Instant::now();
    tokio::time::sleep(time).await;
    let watched = begin.elapsed();
    let taken = spent(pids)?.saturating_sub(before);
    Ok(100.0 * taken.as_secs_f64() / watched.as_secs_f64())
}

/// Returns the time that these processes and their ended children have spent until now, in user and kernel
/// mode.
pub(crate) fn spent(pids: &[u32]) -> Result<Duration, Failure> {
    let mut sum = Duration::ZERO;
    for pid in pids {
        let file = format!("/proc/{pid}/stat");
        let text =
            fs::read_to_string(&file).map_err(|error| format!("cannot read {file}: {error}"))?;
        // The name, in parentheses, may hold anything: the fields are counted from its end, where the third
        // begins.
        let fields = text
            .rsplit_once(") ")
            .ok_or_else(|| format!("{file} names no process"))?
            .1;
        for ticks in fields.split_whitespace().skip(11).take(4) {
            sum += TICK * ticks.parse::<u32>()?;
        }
    }
    Ok(sum)
}
