(let ((words (split-string "one two three four")))
  (princ (format "%S %d\n" (sort words #'string<) (expt 7 20))))
(with-temp-buffer
  (insert "buffer text")
  (goto-char (point-min))
  (while (re-search-forward "t+" nil t) (replace-match "T"))
  (princ (concat (buffer-string) "\n")))
