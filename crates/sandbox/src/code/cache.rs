use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

/// Values by key, of which the oldest are dropped.
#[derive(Debug)]
pub(super) struct Cache<K, V> {
    most: usize,
    entries: Mutex<(HashMap<K, V>, VecDeque<K>)>,
}

impl<K: Clone + Eq + std::hash::Hash, V: Clone> Cache<K, V> {
    pub(super) fn new(most: usize) -> Self {
        Self { most, entries: Mutex::default() }
    }

    pub(super) fn get(&self, key: &K) -> Option<V> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).0.get(key).cloned()
    }

    pub(super) fn put(&self, key: K, value: V) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let (values, order) = &mut *entries;
        if values.insert(key.clone(), value).is_none() {
            order.push_back(key);
        }
        if order.len() > self.most
            && let Some(oldest) = order.pop_front()
        {
            values.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_are_dropped() {
        let cache = Cache::new(2);
        for number in [1, 2, 2, 3] {
            cache.put(number, number * 10);
        }
        assert_eq!([1, 2, 3].map(|key| cache.get(&key)), [None, Some(20), Some(30)]);
    }
}
