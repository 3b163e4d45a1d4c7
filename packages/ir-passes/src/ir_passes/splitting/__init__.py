"""From one functional graph to pieces between its splitting ops; equal pieces are found."""
