use std::collections::BTreeMap;

use rloom_core::Ticket;

use crate::groups::HeldGroup;

/// Tickets per page.
const PAGE: usize = 64;

/// Map from ticket to held group.
///
/// Tickets are issued in order, so those of held groups lie close together: a page of neighbours is one allocation, found
/// through a map small enough to stay in the processor's cache. An empty page is freed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Table {
    pages: BTreeMap<u64, Page>,
    len: usize,
}

#[derive(Debug, Clone)]
struct Page {
    slots: Box<[Option<HeldGroup>; PAGE]>,
    len: usize,
}

impl Table {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn get(&self, ticket: Ticket) -> Option<HeldGroup> {
        let (page, slot) = position(ticket);
        self.pages.get(&page)?.slots[slot]
    }

    pub(crate) fn get_mut(&mut self, ticket: Ticket) -> Option<&mut HeldGroup> {
        let (page, slot) = position(ticket);
        self.pages.get_mut(&page)?.slots[slot].as_mut()
    }

    /// Inserts a ticket that is not in the table.
    pub(crate) fn insert(&mut self, ticket: Ticket, held: HeldGroup) {
        let (page, slot) = position(ticket);
        let page = self.pages.entry(page).or_insert_with(|| Page { slots: Box::new([None; PAGE]), len: 0 });
        if page.slots[slot].replace(held).is_none() {
            page.len += 1;
            self.len += 1;
        }
    }

    pub(crate) fn remove(&mut self, ticket: Ticket) -> Option<HeldGroup> {
        let (number, slot) = position(ticket);
        let page = self.pages.get_mut(&number)?;
        let held = page.slots[slot].take()?;
        page.len -= 1;
        self.len -= 1;
        if page.len == 0 {
            self.pages.remove(&number);
        }
        Some(held)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Ticket, HeldGroup)> {
        self.range_from(Ticket(0))
    }

    /// Groups from a ticket on, in ascending order.
    pub(crate) fn range_from(&self, ticket: Ticket) -> impl Iterator<Item = (Ticket, HeldGroup)> {
        let (first, slot) = position(ticket);
        self.pages.range(first..).flat_map(move |(&number, page)| {
            let skip = if number == first { slot } else { 0 };
            let slots = page.slots.iter().enumerate().skip(skip);
            slots.filter_map(move |(i, held)| Some((Ticket(number * PAGE as u64 + i as u64), (*held)?)))
        })
    }

    pub(crate) fn clear(&mut self) {
        self.pages.clear();
        self.len = 0;
    }
}

fn position(ticket: Ticket) -> (u64, usize) {
    (ticket.0 / PAGE as u64, (ticket.0 % PAGE as u64) as usize)
}
