//! Replicas by number of running sequences, for load balancing.

/// Bucket number of replicas that accept no sequences.
const CLOSED: u32 = u32::MAX;

/// Replicas that accept sequences, in buckets by number of running sequences.
#[derive(Debug)]
pub(crate) struct LoadBuckets {
    buckets: Vec<Vec<u32>>,
    /// Bucket of each replica.
    bucket: Vec<u32>,
    /// Position of each replica in its bucket.
    position: Vec<u32>,
    /// Lower bound of the non-empty buckets.
    lowest: usize,
}

impl LoadBuckets {
    /// Idle replicas that run up to `max_concurrency` sequences each.
    pub(crate) fn new(replicas: u32, max_concurrency: u32) -> Self {
        let mut buckets = vec![Vec::new(); max_concurrency as usize];
        // Reversed, so that replica 0 is chosen first.
        buckets[0] = (0..replicas).rev().collect();
        Self {
            buckets,
            bucket: vec![0; replicas as usize],
            position: (0..replicas).rev().collect(),
            lowest: 0,
        }
    }

    /// The least loaded replica with free capacity.
    pub(crate) fn least_loaded(&mut self) -> Option<u32> {
        while let Some(bucket) = self.buckets.get(self.lowest) {
            if let Some(&replica) = bucket.last() {
                return Some(replica);
            }
            self.lowest += 1;
        }
        None
    }

    /// Moves a replica to the bucket of its running sequences; `None` if it accepts no sequences.
    pub(crate) fn set(&mut self, replica: u32, running: Option<u32>) {
        let r = replica as usize;
        let to = running.unwrap_or(CLOSED);
        let from = std::mem::replace(&mut self.bucket[r], to);
        if from == to {
            return;
        }
        if let Some(bucket) = self.buckets.get_mut(from as usize) {
            let position = self.position[r] as usize;
            bucket.swap_remove(position);
            if let Some(&moved) = bucket.get(position) {
                self.position[moved as usize] = position as u32;
            }
        }
        if let Some(bucket) = self.buckets.get_mut(to as usize) {
            self.position[r] = bucket.len() as u32;
            bucket.push(replica);
            self.lowest = self.lowest.min(to as usize);
        }
    }
}
