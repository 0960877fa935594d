//! Applications with patient limits on a cluster that loses frames and nodes: what is over a limit waits, and
//! no operation fails because of it.

use lite::{App, Error, Limits, NodeId, Permissions};
use netfault::Faults;
use sim::{Cluster, Options};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(300);
/// The length of an operation, and the operations of each of several tasks.
const LEN: usize = 20_000;
const TASKS: u64 = 8;
const ROUNDS: u64 = 12;
const RATE: u64 = 1_000_000;
const BURST: u64 = 40_000;

#[test]
fn patient_limits_slow_operations_down_and_fail_none() {
    for seed in 0..6 {
        let loss = if seed % 2 == 0 { 0.0 } else { 0.01 };
        let faults = Faults { delay_ns: 5_000, loss, ..Faults::NONE };
        let mut c = Cluster::new(Options { seed, faults, ..Options::default() });
        let lite = c.lite(1);
        let tasks = TASKS * ROUNDS * LEN as u64;
        c.world.run(LIMIT, async move {
            let limits = Limits {
                bytes_per_second: Some(RATE),
                burst: BURST,
                outstanding: Some(3),
                patience: LIMIT,
                ..Limits::default()
            };
            let app = App::new("patient", limits);
            let begun = lite.platform().now();
            let limited = lite.for_app(&app);
            let lmr = limited.alloc(NodeId(2), TASKS * LEN as u64, Permissions::all()).await.unwrap();
            lmr.write(0, &[1]).await.unwrap();
            // The deadline is shorter than the wait for the limits.
            let lmr = lmr.with_deadline(Duration::from_millis(100));
            let task = async |number: u64| {
                let (at, data) = (number * LEN as u64, vec![number as u8; LEN]);
                for _ in 0..ROUNDS {
                    lmr.write(at, &data).await?;
                }
                let mut read = vec![0; LEN];
                lmr.read(at, &mut read).await?;
                assert!(read == data);
                Ok::<(), Error>(())
            };
            let done = futures_util::future::join_all((0..TASKS).map(task)).await;
            assert!(done.iter().all(Result::is_ok), "seed {seed}: {done:?}");
            let (usage, took) = (app.usage(), lite.platform().now() - begun);
            assert_eq!((usage.refused, usage.outstanding), (0, 0), "seed {seed}: {usage:?}");
            assert_eq!(usage.bytes, 1 + tasks + TASKS * LEN as u64, "seed {seed}");
            assert!(usage.delayed > 0 && usage.waited > Duration::ZERO, "seed {seed}: {usage:?}");
            let allowed = u128::from(RATE) * took.as_nanos() / 1_000_000_000 + u128::from(BURST);
            assert!(u128::from(usage.bytes) <= allowed, "seed {seed}: {usage:?} in {took:?}");
            // Without patience an operation that would come too late is refused.
            app.set_limits(Limits { patience: Duration::ZERO, bytes_per_second: Some(1000), ..limits });
            lmr.write(0, &[1; LEN]).await.unwrap();
            lmr.write(0, &[1; LEN]).await.unwrap();
            assert_eq!(lmr.write(0, &[1; LEN]).await, Err(Error::Deadline), "seed {seed}");
        });
    }
}
