//! Tests that runs are read as they were written, and that no bytes make a reader panic.

use super::finish;
use crate::region::InMemory;
use crate::run::{RunReader, RunWriter, record_len, table_len};
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;
use proptest::prelude::*;
use runtime::JobError;

type Record = (Vec<u8>, u64);

fn write(runs: &[Vec<Record>]) -> InMemory {
    let mut room = Vec::new();
    let lens: Vec<u64> = runs
        .iter()
        .map(|run| run.iter().map(|(key, value)| record_len(key.len(), value, &mut room)).sum())
        .collect();
    let region = InMemory::default();
    let mut writer = RunWriter::new(region.clone(), &lens);
    finish(async {
        for (key, value) in runs.iter().flatten() {
            writer.push(key, value).await?;
        }
        let len = writer.finish().await?;
        assert_eq!(len, table_len(lens.len()) + lens.iter().sum::<u64>());
        Ok::<(), JobError>(())
    })
    .unwrap();
    region
}

fn read(region: &InMemory, runs: usize, range: Range<usize>, block: usize) -> Result<Vec<Record>, JobError> {
    finish(async {
        let mut reader = RunReader::<_, u64>::open(region.clone(), 3, runs, range, block).await?;
        let mut records = Vec::new();
        while let Some(value) = reader.next().await? {
            records.push((reader.key().to_vec(), value));
        }
        Ok(records)
    })
}

fn some_runs() -> impl Strategy<Value = Vec<Vec<Record>>> {
    let key = prop_oneof![
        9 => proptest::collection::vec(any::<u8>(), 0..20),
        1 => (any::<u8>(), 0usize..3000).prop_map(|(byte, len)| vec![byte; len]),
    ];
    let value = (any::<u64>(), 0u32..64).prop_map(|(value, shift)| value >> shift);
    proptest::collection::vec(proptest::collection::vec((key, value), 0..30), 1..6)
}

proptest! {
    #[test]
    fn runs_come_back(runs in some_runs(), block in 1usize..200, from in 0usize..6, to in 0usize..6) {
        let region = write(&runs);
        let (from, to) = (from.min(runs.len()), to.min(runs.len()));
        if from <= to {
            prop_assert_eq!(read(&region, runs.len(), from..to, block).unwrap(), runs[from..to].concat());
        }
    }

    #[test]
    fn damage_is_an_error_or_other_records(runs in some_runs(), at: prop::sample::Index, byte: u8) {
        let region = write(&runs);
        {
            let mut bytes = region.0.lock();
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let _ = read(&region, runs.len(), 0..runs.len(), 100);
    }

    #[test]
    fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let mut all = Vec::new();
        for offset in [16, 16 + bytes.len() as u64] {
            all.extend_from_slice(&offset.to_le_bytes());
        }
        all.extend(bytes);
        let region = InMemory(alloc::sync::Arc::new(spin::Mutex::new(all)));
        let _ = read(&region, 1, 0..1, 10);
    }
}

#[test]
fn keys_larger_than_any_buffer() {
    let run = vec![(vec![1; 5], 1), (vec![2; 1_000_000], u64::MAX), (vec![], 0), (vec![3; 70_000], 7)];
    let region = write(&[vec![], run.clone()]);
    assert_eq!(read(&region, 2, 0..2, 64 << 10), Ok(run));
}

#[test]
fn malformed_lengths_name_the_rank() {
    let region = InMemory::default();
    region.0.lock().extend([16u64, 19].iter().flat_map(|offset| offset.to_le_bytes()));
    region.0.lock().extend([0xff, 0xff, 0x7f]);
    assert_eq!(read(&region, 1, 0..1, 10), Err(JobError::Malformed { rank: 3 }));
    // A run of the greatest possible length, with a record that nearly fills it.
    let region = InMemory::default();
    region.0.lock().extend([16u64, u64::MAX].iter().flat_map(|offset| offset.to_le_bytes()));
    let mut record = Vec::new();
    crate::Value::encode(&(u64::MAX - 40), &mut record);
    record.resize(64, 0);
    region.0.lock().extend(record);
    assert_eq!(read(&region, 1, 0..1, 48), Err(JobError::Malformed { rank: 3 }));
    // A run that ends before it starts.
    let region = InMemory::default();
    region.0.lock().extend([16u64, 15].iter().flat_map(|offset| offset.to_le_bytes()));
    assert_eq!(read(&region, 1, 0..1, 10), Err(JobError::Malformed { rank: 3 }));
}
