//! Judges as kinds of components.

use std::path::PathBuf;
use std::time::Duration;

use super::classifier::ClassifierReward;
use super::reward::JudgeReward;
use super::settings::{Classifier, ModelJudge};
use crate::kind::KindSettings;
use crate::{ComponentError, JudgeError, Reward};

impl KindSettings for ModelJudge {
    fn validate(&self) -> Result<(), ComponentError> {
        Ok(self.validate()?)
    }

    fn reward(&self, timeout: Duration) -> Result<Box<dyn Reward>, JudgeError> {
        Ok(Box::new(JudgeReward::new(self, timeout)?))
    }

    fn is_verifier(&self) -> bool {
        self.solved_at.is_some()
    }

    fn reads_answer(&self) -> bool {
        self.needs_reference()
    }

    fn takes_solved_at(&self) -> bool {
        true
    }

    fn needs_machine(&self) -> bool {
        true
    }

    fn files(&self) -> Vec<PathBuf> {
        self.prompt.iter().cloned().collect()
    }

    fn make_absolute(&mut self) {
        self.make_absolute();
    }
}

impl KindSettings for Classifier {
    fn validate(&self) -> Result<(), ComponentError> {
        Ok(self.validate()?)
    }

    fn reward(&self, timeout: Duration) -> Result<Box<dyn Reward>, JudgeError> {
        Ok(Box::new(ClassifierReward::new(self, timeout)?))
    }

    fn is_verifier(&self) -> bool {
        self.solved_at.is_some()
    }

    fn takes_solved_at(&self) -> bool {
        true
    }

    fn needs_machine(&self) -> bool {
        true
    }

    fn files(&self) -> Vec<PathBuf> {
        self.prompt.iter().cloned().collect()
    }

    fn make_absolute(&mut self) {
        self.make_absolute();
    }
}
