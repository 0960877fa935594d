//! The quality of service of a job: the priority and the limits of its operations of LITE.

use crate::{ByteRate, Reason};
use alloc::format;
use core::fmt;
use core::str::FromStr;
use serde::{Deserialize, Serialize};

/// The priority of a job's operations of LITE. It is another one than the priority in the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum RdmaPriority {
    /// Operations that yield to those of high priority.
    Low,
    /// The usual priority.
    #[default]
    Normal,
    /// Operations to which those of low priority yield.
    High,
}

impl RdmaPriority {
    /// Returns the priority as one word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Normal => "normal",
            Self::High => "high",
        }
    }
}

impl fmt::Display for RdmaPriority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl FromStr for RdmaPriority {
    type Err = Reason;

    fn from_str(text: &str) -> Result<Self, Reason> {
        match text {
            "low" => Ok(Self::Low),
            "normal" => Ok(Self::Normal),
            "high" => Ok(Self::High),
            other => Err(format!("{other} is no priority of operations: want low, normal or high")),
        }
    }
}

/// The quality of service of a job on each of its nodes. `None` in a request leaves a choice to the manager;
/// in what the manager has decided it means the usual priority, and no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobQos {
    /// The priority of the operations.
    pub priority: Option<RdmaPriority>,
    /// The rate of operations and calls that the job begins on a node, in bytes per second.
    pub bytes_per_second: Option<u64>,
    /// The number of operations and calls of the job in flight on a node.
    pub outstanding: Option<u32>,
}

impl JobQos {
    /// Returns true if there is nothing to tell a node.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        *self == Self::default()
    }

    /// Checks the numbers.
    ///
    /// # Errors
    /// A reason for users.
    pub fn check(&self) -> Result<(), Reason> {
        if self.bytes_per_second.is_some_and(|rate| rate < ByteRate::LEAST) {
            return Err(format!("a limit of RDMA is at least {} bytes per second", ByteRate::LEAST));
        }
        match self.outstanding {
            Some(0) => Err("at least one operation of RDMA may be outstanding".into()),
            Some(_) | None => Ok(()),
        }
    }
}

/// The rules of the operator for the quality of service of jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QosRules {
    /// The quality of service of a job that asks for none.
    pub usual: JobQos,
    /// The highest priority and the highest limits of a job.
    pub most: JobQos,
}

impl QosRules {
    /// Returns what a job gets that asks for `wish`.
    ///
    /// # Errors
    /// A reason for users, if the job asks for more than the operator allows.
    pub fn decide(&self, wish: &JobQos) -> Result<JobQos, Reason> {
        wish.check()?;
        let Self { usual, most } = self;
        let over = |what: &str, wish: &dyn fmt::Display, most: &dyn fmt::Display| {
            Err(format!("{what} {wish} is more than the operator allows, which is {most}"))
        };
        if let (Some(wish), Some(most)) = (wish.priority, most.priority)
            && wish > most
        {
            return over("the RDMA priority", &wish, &most);
        }
        if let (Some(wish), Some(most)) = (wish.bytes_per_second, most.bytes_per_second)
            && wish > most
        {
            return over("the RDMA limit of bytes per second", &wish, &most);
        }
        if let (Some(wish), Some(most)) = (wish.outstanding, most.outstanding)
            && wish > most
        {
            return over("the number of outstanding RDMA operations", &wish, &most);
        }
        let priority = wish.priority.or(usual.priority).unwrap_or_default();
        let priority = most.priority.map_or(priority, |most| priority.min(most));
        Ok(JobQos {
            priority: Some(priority).filter(|priority| *priority != RdmaPriority::Normal),
            bytes_per_second: least(wish.bytes_per_second.or(usual.bytes_per_second), most.bytes_per_second),
            outstanding: least(wish.outstanding.or(usual.outstanding), most.outstanding),
        })
    }
}

/// Returns the lower of two limits.
fn least<T: Ord>(one: Option<T>, other: Option<T>) -> Option<T> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn qos(priority: Option<RdmaPriority>, rate: Option<u64>, outstanding: Option<u32>) -> JobQos {
        JobQos { priority, bytes_per_second: rate, outstanding }
    }

    #[test]
    fn a_job_gets_what_it_asks_for_within_what_the_operator_allows() {
        use RdmaPriority::{High, Low, Normal};
        let nothing = qos(None, None, None);
        let free = QosRules::default();
        let wish = qos(Some(High), Some(5000), Some(3));
        assert_eq!(free.decide(&nothing), Ok(nothing));
        assert_eq!(free.decide(&wish), Ok(wish));
        assert_eq!(free.decide(&qos(Some(Normal), None, None)), Ok(nothing));
        let rules = QosRules {
            usual: qos(Some(Low), Some(2000), None),
            most: qos(Some(Normal), Some(4000), Some(8)),
        };
        // A job that names no value gets the usual one. Without a usual value it gets the most,
        // if there is one.
        assert_eq!(rules.decide(&nothing), Ok(qos(Some(Low), Some(2000), Some(8))));
        assert_eq!(rules.decide(&qos(Some(Normal), Some(4000), Some(2))), Ok(qos(None, Some(4000), Some(2))));
        for wish in [qos(Some(High), None, None), qos(None, Some(4001), None), qos(None, None, Some(9))] {
            let refusal = rules.decide(&wish).unwrap_err();
            assert!(refusal.contains("more than the operator allows"), "{refusal}");
        }
        // A ceiling holds for the usual as well.
        let low = QosRules { most: qos(Some(Low), None, None), ..free };
        assert_eq!(low.decide(&nothing), Ok(qos(Some(Low), None, None)));
    }

    #[test]
    fn numbers_with_which_a_job_makes_no_progress_are_refused() {
        for wish in [qos(None, Some(999), None), qos(None, None, Some(0))] {
            assert!(QosRules::default().decide(&wish).is_err(), "{wish:?}");
        }
        assert_eq!("high".parse(), Ok(RdmaPriority::High));
        assert!("High".parse::<RdmaPriority>().unwrap_err().contains("want low, normal or high"));
    }
}
